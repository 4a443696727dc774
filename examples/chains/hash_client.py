#!/usr/bin/python3
"""A client of hash_server in Python, through pyverbs: asks for keys one after the other, and prints their values.

    rdmesh run --name a --net blue --ip 10.7.0.2 -- examples/chains/hash_server
    rdmesh run --name b --net blue --ip 10.7.0.3 -- examples/chains/hash_client.py 10.7.0.2 one two nothing

Messages and replies are encoded by the library that `rdmesh run` has loaded into this process; all else is plain verbs.
"""
import ctypes
import socket
import sys

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 18640
RECORD, MESSAGE = 4096, 64  # bytes of a reply and of a message
GID_INDEX = 1  # the IPv4 address
KINDS = ["", "not there", "not there any more", "changed meanwhile", "asked twice"]

library = ctypes.CDLL(None)


class Shape(ctypes.Structure):
    """`struct rdmesh_hash_shape`, as in hash_table.h."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("buckets", "records", "record_size")]
    _fields_ += [(name, ctypes.c_uint32) for name in ("probe", "neighbours", "key_words", "reserved")]


class Answer(ctypes.Structure):
    """`struct rdmesh_answer`."""

    _fields_ = [("kind", ctypes.c_uint32), ("version", ctypes.c_uint32), ("value", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def error():
    """Why the library's last call failed."""
    library.rdmesh_chain_error.restype = ctypes.c_char_p
    return library.rdmesh_chain_error().decode()


class Keys:
    """Messages that ask for keys, and what their replies say."""

    def __init__(self):
        library.rdmesh_hash_client_new.restype = ctypes.c_void_p
        shape = Shape(buckets=1024, records=512, record_size=RECORD)
        self.client = ctypes.c_void_p(library.rdmesh_hash_client_new(ctypes.byref(shape)))

    def message(self, key, address, rkey):
        message, tag = ctypes.create_string_buffer(MESSAGE), ctypes.c_uint32()
        reply = ctypes.c_uint64(address), ctypes.c_uint32(rkey)
        room = ctypes.c_size_t(MESSAGE)
        length = library.rdmesh_hash_request(
            self.client, key, ctypes.c_size_t(len(key)), *reply, message, room, ctypes.byref(tag)
        )
        if length < 0:
            sys.exit(f"{key.decode()}: {error()}")
        return message.raw[:length], tag.value

    def answer(self, tag, reply):
        answer = Answer()
        library.rdmesh_hash_reply(self.client, ctypes.c_uint32(tag), reply, ctypes.c_size_t(len(reply)), ctypes.byref(answer))
        return ctypes.string_at(answer.value, answer.length) if answer.kind == 0 else KINDS[answer.kind]


class Client:
    """A reliable connection to the server's chain, and memory for a reply and a message."""

    def __init__(self, stream):
        devices = get_device_list()
        if not devices or not hasattr(library, "rdmesh_chain_error"):
            sys.exit("there is no RDMA device: is this run by `rdmesh run`?")
        self.context = Context(name=devices[0].name.decode())
        self.pd = PD(self.context)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.mr = MR(self.pd, RECORD + MESSAGE, access)
        self.cq = CQ(self.context, 16)
        cap = QPCap(max_send_wr=4, max_recv_wr=4)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=False))
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        self.qp.to_init(attr)
        self.join(stream)
        self.keys = Keys()

    def join(self, stream):
        """Tells the server of us, and brings the queue pair to the state in which it sends."""
        gid = str(self.context.query_gid(1, GID_INDEX))
        stream.sendall(f"{self.qp.qp_num:x} {gid.replace(':', '')}\n".encode())
        line = b""
        while not line.endswith(b"\n"):
            line += stream.recv(1) or sys.exit("the server has gone")
        number, gid = line.decode().split()
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = int(number, 16)
        attr.path_mtu = e.IBV_MTU_1024
        attr.min_rnr_timer = 1
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        dgid = ":".join(gid[i : i + 4] for i in range(0, 32, 4))
        attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=GID(dgid), sgid_index=GID_INDEX), is_global=1, port_num=1)
        self.qp.to_rts(attr)
        stream.sendall(b".")
        stream.recv(1)

    def get(self, key):
        """The value of a key, or why there is none."""
        message, tag = self.keys.message(key, self.mr.buf, self.mr.rkey)
        self.mr.write(message, len(message), RECORD)
        # The reply is a WRITE with immediate data, which takes a receive request.
        self.qp.post_recv(RecvWR(sg=[SGE(self.mr.buf, RECORD, self.mr.lkey)], num_sge=1))
        data = SGE(self.mr.buf + RECORD, len(message), self.mr.lkey)
        self.qp.post_send(SendWR(opcode=e.IBV_WR_SEND, sg=[data], num_sge=1, send_flags=0))
        completions = []
        while not completions:
            _, completions = self.cq.poll(1)
        if completions[0].status != e.IBV_WC_SUCCESS:
            sys.exit(f"the request ended with status {completions[0].status}")
        return self.keys.answer(tag, self.mr.read(completions[0].byte_len, 0) if completions[0].byte_len else b"")


def main():
    client = Client(socket.create_connection((sys.argv[1], PORT)))
    for key in sys.argv[2:]:
        value = client.get(key.encode())
        print(f"{key}: {value.decode()}" if isinstance(value, bytes) else f"{key} ({value})")


main()
