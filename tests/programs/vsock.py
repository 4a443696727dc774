#!/usr/bin/env python3
"""A guest that means harm: speaks to the device process on its host, and expects to be shut out.

    vsock.py user | noise | addresses | order | streams
"""
import ctypes
import mmap
import os
import random
import socket
import struct
import sys

HOST, PORT = 2, 4791
AGENT, PROGRAM = 1, 2
REQUEST, OPEN, PAGES, RING = 1, 2, 3, 4
REPLY, WELCOME = 19, 16
VERSION = 6
KEPT = []
NAME = b"vsock".ljust(16, b"\0")


def connect(privileged=False):
    stream = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    stream.settimeout(20)
    if privileged:
        for port in range(1, 1024):
            try:
                stream.bind((socket.VMADDR_CID_ANY, port))
                break
            except OSError:
                continue
    stream.connect((HOST, PORT))
    return stream


def hello(purpose, token=bytes(16)):
    return struct.pack("<8sII16s", b"rdmesh-1", purpose, 0, token)


def frame(kind, payload=b""):
    return struct.pack("<II", kind, len(payload)) + payload


def receive(stream, length):
    data = b""
    while len(data) < length:
        part = stream.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def reply(stream):
    """The next answer, or None where the host has closed the stream."""
    try:
        while True:
            kind, length = struct.unpack("<II", receive(stream, 8))
            payload = receive(stream, length)
            if kind == REPLY:
                return payload
    except (EOFError, ConnectionError):
        return None


def is_shut(stream):
    try:
        while stream.recv(65536):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def try_send(stream, data):
    try:
        stream.sendall(data)
    except OSError:
        pass


def token():
    stream = connect(privileged=True)
    stream.sendall(hello(AGENT))
    kind, length = struct.unpack("<II", receive(stream, 8))
    assert kind == WELCOME, kind
    return receive(stream, length)


def program(secret):
    stream = connect()
    stream.sendall(hello(PROGRAM, secret))
    return stream


def user():
    assert os.getuid() != 0
    for purpose, secret in [(AGENT, bytes(16)), (PROGRAM, bytes(16)), (PROGRAM, os.urandom(16)), (77, bytes(16))]:
        stream = connect()
        try_send(stream, hello(purpose, secret))
        assert is_shut(stream), (purpose, secret)


def noise():
    secret = token()
    random.seed(1)
    for turn in range(60):
        stream = connect() if turn % 3 else program(secret)
        try_send(stream, os.urandom(random.randrange(1, 5000)) + bytes(64))
        stream.close()
    for kind in [0, 5, 16, 19, 255]:
        stream = program(secret)
        try_send(stream, frame(kind, b"x"))
        assert is_shut(stream), kind
    stream = program(secret)
    try_send(stream, struct.pack("<II", REQUEST, 0xFFFFFFFF))
    assert is_shut(stream)


def errno_of(stream, data):
    stream.sendall(data)
    answer = reply(stream)
    return None if answer is None else struct.unpack_from("<I", answer)[0]


def addresses():
    secret = token()
    # No memory there; not whole pages; too few, and none.
    for pages in [[1 << 50] * 21, [0x1008] * 21, [0x30000000] * 21, [0x100000] * 3, []]:
        stream = program(secret)
        error = errno_of(stream, frame(OPEN, NAME + struct.pack(f"<{len(pages)}Q", *pages)))
        assert error, (pages[:1], error)
    # A context on memory that there is: whatever is in it, it hurts this guest only. Its regions must be the guest's memory.
    stream = program(secret)
    pages = own_pages(22)
    assert errno_of(stream, frame(OPEN, NAME + struct.pack("<21Q", *pages[:21]))) == 0

    def verbs(command, segments=()):
        header = struct.pack("<IIII", VERSION, 3, len(command), len(segments))
        return frame(REQUEST, header + command + b"".join(struct.pack("<QQIIQ", *one) for one in segments))
    assert errno_of(stream, verbs(struct.pack("<IHHQ", 0, 4, 2, 0x1000))) == 0
    assert errno_of(stream, verbs(struct.pack("<IHHQ", 3, 4, 1, 0x1000))) == 0

    def register(start, length, segments, access=1):
        command = struct.pack("<IHHQQQQII", 9, 12, 3, 0x1000, start, length, start, 0, access)
        return errno_of(stream, verbs(command, segments))

    arena, private = 1, 2
    for length, kind, offset in [(4096, arena, 1 << 40), (1 << 40, arena, 0), (4096, arena, (1 << 64) - 4096), (4096, private, 0)]:
        error = register(0x10000, length, [(0x10000, length, kind, 0, offset)])
        assert error, (length, kind, offset)
    # The whole address space, on demand, would be the device process's.
    assert register(0, (1 << 64) - 1, [], access=1 << 6 | 1)
    assert register(0x10000, 4096, [(0x10000, 4096, arena, 0, pages[21])]) == 0


def own_pages(count):
    """Guest-physical addresses of pages of this process, which stay as long as it does, or nearly."""
    memory = mmap.mmap(-1, count * 4096)
    memory.write(bytes(count * 4096))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    KEPT.append(memory)
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(address // 4096 * 8)
        entries = struct.unpack(f"<{count}Q", pagemap.read(count * 8))
    return [(entry & (1 << 55) - 1) * 4096 for entry in entries]


def order():
    secret = token()
    # Two requests at once; pages before there is a context; a doorbell of none.
    stream = program(secret)
    stream.sendall(frame(RING) * 100)
    pages = struct.pack("<QQ", 4096, 0x1000000)
    try_send(stream, frame(PAGES, pages) * 50)
    assert is_shut(stream)
    # Kinds of messages that only a host's own programs send: leases, chains, a device on a descriptor.
    for kind in [1, 22, 23, 24, 25, 26, 99]:
        stream = program(secret)
        error = errno_of(stream, frame(REQUEST, struct.pack("<IIII", VERSION, kind, 0, 0)))
        assert error, kind


def streams():
    secret = token()
    held = []
    try:
        for _ in range(1200):
            held.append(program(secret))
    except OSError:
        pass
    assert 100 < len(held) < 1200, len(held)
    # Frames that never become whole.
    for stream in held:
        stream.settimeout(0.2)
        try_send(stream, struct.pack("<II", REQUEST, 8 << 20) + bytes(200000))


globals()[sys.argv[1]]()
