#!/usr/bin/python3
"""RDMA from Python, through pyverbs: checked WRITEs and SENDs between two endpoints.

    rdmesh run --name a --net blue --ip 10.7.0.2 -- examples/pyverbs/pingpong.py
    rdmesh run --name b --net blue --ip 10.7.0.3 -- examples/pyverbs/pingpong.py 10.7.0.2

Each round the client writes a block of data straight into the server's memory and says so with a SEND; the server checks the
block and answers in the same way. What each side must know of the other beforehand goes over plain TCP.
"""
import json
import os
import socket
import random
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 18610
ROUNDS = 200
BLOCK = 4096
WORD = 8
GID_INDEX = 1  # 0 is the link-local address, 1 the IPv4 one


def block(number):
    """The data of a turn."""
    return random.Random(number).randbytes(BLOCK)


class Link:
    """A reliable connection, and memory that the other end writes into."""

    def __init__(self, stream):
        devices = get_device_list()
        if not devices:
            sys.exit("there is no RDMA device: is this run by `rdmesh run`?")
        self.context = Context(name=devices[0].name.decode())
        self.pd = PD(self.context)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        # The other end's block, behind it its word that the block is there, and our own block.
        self.mr = MR(self.pd, BLOCK + WORD + BLOCK, access)
        self.cq = CQ(self.context, 16)
        cap = QPCap(max_send_wr=4, max_recv_wr=4)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=True))
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        self.qp.to_init(attr)
        self.expect_word()
        self.done = []
        self.join(stream)

    def join(self, stream):
        """Tells the other end of us, and brings the queue pair to the state in which it sends."""
        own = {
            "qpn": self.qp.qp_num,
            "gid": str(self.context.query_gid(1, GID_INDEX)),
            "rkey": self.mr.rkey,
            "address": self.mr.buf,
        }
        say(stream, json.dumps(own))
        self.peer = json.loads(hear(stream))
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = self.peer["qpn"]
        attr.path_mtu = e.IBV_MTU_1024
        attr.min_rnr_timer = 12
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        route = GlobalRoute(dgid=GID(self.peer["gid"]), sgid_index=GID_INDEX)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        self.qp.to_rts(attr)
        meet(stream)

    def expect_word(self):
        """Posts a receive for the other end's next SEND."""
        word = SGE(self.mr.buf + BLOCK, WORD, self.mr.lkey)
        self.qp.post_recv(RecvWR(wr_id=3, sg=[word], num_sge=1))

    def write_and_tell(self, number):
        """Writes a block into the other end's memory, and says so."""
        self.mr.write(block(number), BLOCK, BLOCK + WORD)
        data = SGE(self.mr.buf + BLOCK + WORD, BLOCK, self.mr.lkey)
        write = SendWR(wr_id=1, opcode=e.IBV_WR_RDMA_WRITE, sg=[data], num_sge=1)
        write.set_wr_rdma(self.peer["rkey"], self.peer["address"])
        word = SGE(self.mr.buf + BLOCK + WORD, WORD, self.mr.lkey)
        tell = SendWR(wr_id=2, opcode=e.IBV_WR_SEND, sg=[word], num_sge=1)
        self.qp.post_send(write)
        self.qp.post_send(tell)
        self.wait(1)
        self.wait(2)

    def wait_and_check(self, number):
        """Waits for the word that a block is here, and checks every byte of it."""
        self.wait(3)
        if self.mr.read(BLOCK, 0) != block(number):
            sys.exit(f"block {number} is not as it was sent")
        self.expect_word()

    def wait(self, wr_id):
        """Polls until a work request is done."""
        while wr_id not in self.done:
            _, completions = self.cq.poll(16)
            for wc in completions:
                if wc.status != e.IBV_WC_SUCCESS:
                    sys.exit(f"request {wc.wr_id} ended with status {wc.status}")
                self.done.append(wc.wr_id)
            if not completions:
                os.sched_yield()
        self.done.remove(wr_id)


def say(stream, line):
    """Sends a line to the other end."""
    stream.sendall(line.encode() + b"\n")


def hear(stream):
    """The other end's next line, and nothing of what follows it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = stream.recv(1)
        if not byte:
            sys.exit("the other end has gone")
        line += byte
    return line


def meet(stream):
    """Returns when the other end is here too."""
    say(stream, "")
    hear(stream)


def main():
    if len(sys.argv) > 1:
        stream = socket.create_connection((sys.argv[1], PORT))
    else:
        stream, _ = socket.create_server(("", PORT)).accept()
    link = Link(stream)
    begin = time.monotonic()
    for turn in range(2 * ROUNDS):
        # The client has the even turns, the server the odd ones.
        if (turn % 2 == 0) == (len(sys.argv) > 1):
            link.write_and_tell(turn)
        else:
            link.wait_and_check(turn)
    each_way = (time.monotonic() - begin) * 1e6 / (2 * ROUNDS)
    print(f"{ROUNDS} rounds of {BLOCK} bytes, all of them right: {each_way:.1f} us each way")
    meet(stream)


main()
