"""A reliable connection through pyverbs, with memory for messages and replies: what the clients in Python share.

Messages go as plain SENDs; replies come as SENDs or WRITEs with immediate data. Nothing of it is particular to chains.
"""
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

GID_INDEX = 1  # the IPv4 address
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
PATIENCE = 5  # seconds


class Ended(Exception):
    """The connection, or what answers at its other end, has ended."""


class Connection:
    """A queue pair, and `size` bytes of registered memory, for so many requests at a time."""

    def __init__(self, size, outstanding):
        devices = get_device_list()
        if not devices:
            raise Ended("there is no RDMA device: is this run by `rdmesh run`?")
        self.context = Context(name=devices[0].name.decode())
        self.pd = PD(self.context)
        self.mr = MR(self.pd, size, ACCESS)
        self.cq = CQ(self.context, 4 * outstanding)
        cap = QPCap(max_send_wr=2 * outstanding, max_recv_wr=2 * outstanding)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=False))
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        self.qp.to_init(attr)

    def gid(self):
        """Our address, as 32 hexadecimal digits."""
        return str(self.context.query_gid(1, GID_INDEX)).replace(":", "")

    def connect(self, number, gid, psn=0, peer_psn=0):
        """Brings the queue pair to the state in which it sends to queue pair `number` at `gid`."""
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = number
        attr.path_mtu = e.IBV_MTU_1024
        attr.min_rnr_timer = 1
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        attr.sq_psn, attr.rq_psn = psn, peer_psn
        dgid = ":".join(gid[i : i + 4] for i in range(0, 32, 4))
        attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=GID(dgid), sgid_index=GID_INDEX), is_global=1, port_num=1)
        self.qp.to_rts(attr)

    def meet(self, stream):
        """Connects with a server that tells its end over TCP, as connect.h does."""
        stream.sendall(f"{self.qp.qp_num:x} {self.gid()}\n".encode())
        line = b""
        while not line.endswith(b"\n"):
            byte = stream.recv(1)
            if not byte:
                raise Ended("the server has gone")
            line += byte
        number, gid = line.decode().split()
        self.connect(int(number, 16), gid)
        # Both ends are ready when each has said so.
        stream.sendall(b".")
        stream.recv(1)

    def send(self, message, at, place, room):
        """Sends a message from the memory's byte `at` on. A reply by SEND comes to `room` bytes from `place` on; one by WRITE takes
        the receive request only."""
        self.mr.write(message, len(message), at)
        self.qp.post_recv(RecvWR(sg=[SGE(self.mr.buf + place, room, self.mr.lkey)], num_sge=1))
        data = SGE(self.mr.buf + at, len(message), self.mr.lkey)
        self.qp.post_send(SendWR(opcode=e.IBV_WR_SEND, sg=[data], num_sge=1, send_flags=0))

    def reply(self):
        """Immediate data and length of the next reply."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            _, completions = self.cq.poll(1)
            if completions:
                if completions[0].status != e.IBV_WC_SUCCESS:
                    raise Ended(f"the request ended with status {completions[0].status}")
                return completions[0].imm_data, completions[0].byte_len
        raise Ended(f"there was no reply for {PATIENCE} seconds")

    def read(self, at, length):
        """Bytes of the memory."""
        return self.mr.read(length, at) if length else b""
