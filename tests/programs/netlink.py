"""Uses a NETLINK_RDMA socket as programs do, and as none should; ends with a line that says so."""
import os
import random
import select
import socket
import struct

NETLINK_RDMA = 20
GET, SET, QP_GET = 0x1401, 0x1402, 0x140A
REQUEST, ACK, DUMP = 1, 4, 0x300


def open_socket(kind=socket.SOCK_RAW):
    return socket.socket(socket.AF_NETLINK, kind, NETLINK_RDMA)


def message(kind, flags, body=b"", seq=7):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, seq, 0) + body


def header(data):
    return struct.unpack_from("=IHHII", data)


def attribute(kind, value):
    return struct.pack("=HHI", 8, kind, value)


nl = open_socket()
assert nl.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_NETLINK
assert nl.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == NETLINK_RDMA
assert nl.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_RAW
assert nl.getsockname() == (0, 0), nl.getsockname()
nl.bind((0, 0))
port = nl.getsockname()[0]
assert port == os.getpid(), port
assert nl.getpeername() == (0, 0)

# It is readable when there is something to read, and the kernel is who sends.
poll = select.epoll()
poll.register(nl, select.EPOLLIN)
assert poll.poll(0) == []
nl.sendto(message(GET, REQUEST | DUMP), (0, 0))
assert poll.poll(0)[0][1] & select.EPOLLIN
data, sender = nl.recvfrom(4096)
assert sender == (0, 0)
length, kind, flags, seq, pid = header(data)
assert (length, kind, flags, seq, pid) == (len(data), GET, 2, 7, port)
assert b"rxe0\0" in data
data, _, flags, sender = nl.recvmsg(4096)
assert (header(data)[1], sender) == (3, (0, 0)) and struct.unpack_from("=i", data, 16) == (0,)
assert poll.poll(0) == []

# A length that was not expected is told, and what is peeked at stays.
nl.send(message(GET, REQUEST, attribute(1, 0)))
length = nl.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
data = nl.recv(4096)
assert len(data) == length == header(data)[0]

# Errors repeat the request; a duplicate of the descriptor is the same socket.
same = socket.socket(fileno=os.dup(nl.fileno()))
nl.close()
same.send(message(SET, REQUEST, attribute(1, 0)))
data = same.recv(4096)
assert header(data)[1] == 2 and struct.unpack_from("=i", data, 16) == (-1,)
assert data[20:] == message(SET, REQUEST, attribute(1, 0))

# A child has the socket too.
child = os.fork()
if child == 0:
    same.send(message(GET, REQUEST, attribute(1, 0), seq=99))
    os._exit(0 if header(same.recv(4096))[3] == 99 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
same.send(message(GET, REQUEST | ACK, attribute(1, 0), seq=100))
assert [header(same.recv(4096))[1::2] for _ in range(2)] == [(GET, 100), (2, 100)]

# Other sockets and groups are not for users.
for name in ((1, 0), (0, 1)):
    try:
        same.sendto(message(GET, REQUEST), name)
    except PermissionError:
        continue
    raise AssertionError(f"sent to {name}")
try:
    open_socket().bind((0, 1))
except PermissionError:
    pass
else:
    raise AssertionError("joined a group")
try:
    open_socket(socket.SOCK_STREAM)
except OSError:
    pass
else:
    raise AssertionError("a stream")

# A function that is not replaced fails, rather than waiting for an answer for ever.
try:
    os.writev(same.fileno(), [message(GET, REQUEST, attribute(1, 0))])
except BrokenPipeError:
    pass
else:
    raise AssertionError("written to nobody")

# Whatever is sent, the socket answers the next question.
same.setblocking(False)
rng = random.Random(1)


def drain(sock):
    count = 0
    while True:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return count
        assert len(data) >= 16 and header(data)[0] == len(data), data
        count += 1


for round in range(3000):
    body = rng.randbytes(rng.randrange(64))
    if round % 3 == 0:
        data = body
    elif round % 3 == 1:
        data = message(5 << 10 | rng.randrange(40), rng.randrange(1024), body)
    else:
        data = message(rng.randrange(65536), rng.randrange(65536), attribute(1, 0) + attribute(3, 1) + body)
        data = struct.pack("=I", rng.choice([0, 15, 16, len(data), len(data) + 1, 2**32 - 1])) + data[4:]
    try:
        same.send(data)
    except OSError as error:
        raise AssertionError((round, data)) from error
    drain(same)
same.send(message(GET, REQUEST, attribute(1, 0)))
assert drain(same) == 1

# Many sockets, and some that nobody reads from.
many = [open_socket() for _ in range(50)]
for sock in many:
    for _ in range(20):
        try:
            sock.send(message(QP_GET, REQUEST | DUMP, attribute(1, 0)))
        except OSError:
            break
for sock in many:
    sock.close()
same.send(message(GET, REQUEST, attribute(1, 0)))
assert drain(same) == 1
print("all is as it should be")
