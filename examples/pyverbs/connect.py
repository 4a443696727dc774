#!/usr/bin/python3
"""RDMA from Python, through pyverbs and rdma_cm: addresses and ports as with sockets, and nothing exchanged by hand.

    rdmesh run --name a --net blue --ip 10.7.0.2 -- examples/pyverbs/connect.py
    rdmesh run --name b --net blue --ip 10.7.0.3 -- examples/pyverbs/connect.py 10.7.0.2

The client sends blocks of data, the server sends each one back in reverse, and the client checks every byte.
"""
import random
import sys
import time

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.qp import QPCap, QPInitAttr

PORT = "18630"
ROUNDS = 200
BLOCK = 4096


def block(number):
    """The data of a round."""
    return random.Random(number).randbytes(BLOCK)


def queues():
    """How large the connection's queues are."""
    return QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=4, max_recv_wr=4), sq_sig_all=True)


def receive(connection, memory):
    """Waits for the next message, and gets ready for the one after it."""
    connection.get_recv_comp()
    data = memory.read(BLOCK, 0)
    connection.post_recv(memory)
    return data


def send(connection, memory, data):
    """Sends a message, and waits until the other end has it."""
    memory.write(data, BLOCK)
    connection.post_send(memory)
    connection.get_send_comp()


def serve():
    """Answers one client."""
    address = AddrInfo(src="0.0.0.0", src_service=PORT, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
    listener = CMID(creator=address, qp_init_attr=queues())
    listener.listen()
    connection = listener.get_request()
    incoming, outgoing = connection.reg_msgs(BLOCK), connection.reg_msgs(BLOCK)
    connection.post_recv(incoming)
    connection.accept(ConnParam())
    for _ in range(ROUNDS):
        send(connection, outgoing, receive(connection, incoming)[::-1])
    # The client's word that it has the last answer.
    connection.get_recv_comp()
    connection.disconnect()


def ask(server):
    """Sends blocks to a server and checks what it makes of them."""
    address = AddrInfo(dst=server, dst_service=PORT, port_space=ce.RDMA_PS_TCP)
    connection = CMID(creator=address, qp_init_attr=queues())
    incoming, outgoing = connection.reg_msgs(BLOCK), connection.reg_msgs(BLOCK)
    connection.post_recv(incoming)
    connection.connect(ConnParam())
    begin = time.monotonic()
    for number in range(ROUNDS):
        send(connection, outgoing, block(number))
        if receive(connection, incoming) != block(number)[::-1]:
            sys.exit(f"the answer to block {number} is wrong")
    each_way = (time.monotonic() - begin) * 1e6 / (2 * ROUNDS)
    print(f"{ROUNDS} rounds of {BLOCK} bytes, all of them right: {each_way:.1f} us each way")
    send(connection, outgoing, bytes(BLOCK))
    connection.disconnect()


if len(sys.argv) > 1:
    ask(sys.argv[1])
else:
    serve()
