#!/usr/bin/python3
"""A client in Python, through pyverbs, of a memcached with librdmesh-memcached.so: gets go by chain, each reply is checked, and
what a chain does not answer is asked for by socket.

    rdmesh run --name c --net blue --ip 10.7.0.3 -- examples/memcached/memcached_get.py 10.7.0.2 [PORT]

Lines on standard input: `get KEY...` prints "chain VALUE", "socket VALUE" or "miss" for each key, which are asked for together;
`set KEY VALUE`, and any other command of memcached's without data, print the server's answer.
"""
import ctypes
import os
import secrets
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../chains"))
from connection import Connection, Ended

OUTSTANDING = 2  # requests at a time
MESSAGE, HEAD, MOST = 256, 256, 1 << 20  # bytes of a message, of an item's header, and of an item
PLACE = MESSAGE + HEAD + MOST
TRIES = 8
VALUE, MISS, CHANGED, TOO_LONG, ELSEWHERE, STALE = range(6)  # enum rdmesh_memcached_kind
BEFORE_START = 60  # memcached's clock begins so many seconds before its uptime

library = ctypes.CDLL(None)


class Shape(ctypes.Structure):
    """`struct rdmesh_memcached_shape`."""

    _fields_ = [("hash_power", ctypes.c_uint32), ("hops", ctypes.c_uint32), ("items", ctypes.c_uint64)]


class Buffer(ctypes.Structure):
    """`struct rdmesh_memcached_buffer`."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("address", "check")]
    _fields_ += [(name, ctypes.c_uint32) for name in ("rkey", "room")]


class Answer(ctypes.Structure):
    """`struct rdmesh_memcached_answer`."""

    _fields_ = [("kind", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("cas", ctypes.c_uint64)]
    _fields_ += [("value", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Chain:
    """A chain in memcached, and our connection to it. While the stream is open, memcached keeps it."""

    def __init__(self, host, port, uptime):
        if not hasattr(library, "rdmesh_memcached_client_new"):
            raise Ended("there is no library: is this run by `rdmesh run`?")
        self.connection = Connection(OUTSTANDING * PLACE, OUTSTANDING)
        self.stream = socket.create_connection((host, port))
        psn = secrets.randbits(24)
        self.stream.sendall(f"chain {self.connection.gid()} {self.connection.qp.qp_num} {psn}\n".encode())
        words = self.stream.recv(256).decode().split()
        if len(words) != 7 or words[0] != "CHAIN":
            raise Ended("memcached has no chain for us")
        gid, (number, peer_psn, hash_power, hops, items) = words[1], map(int, words[2:])
        self.connection.connect(number, gid, psn, peer_psn)
        library.rdmesh_memcached_client_new.restype = ctypes.c_void_p
        shape = Shape(hash_power=hash_power, hops=hops, items=items)
        self.client = ctypes.c_void_p(library.rdmesh_memcached_client_new(ctypes.byref(shape)))
        self.room = 4096
        self.began = time.monotonic() - uptime - BEFORE_START

    def ask(self, key, place):
        """Asks for a key; returns the tag that the reply has, and the room that the item has."""
        mr, at = self.connection.mr, place * PLACE
        to = Buffer(mr.buf + at + MESSAGE + HEAD, mr.buf + at + MESSAGE, mr.rkey, self.room)
        message, tag = ctypes.create_string_buffer(MESSAGE), ctypes.c_uint32()
        size = ctypes.c_size_t(MESSAGE)
        arguments = self.client, key, ctypes.c_size_t(len(key)), ctypes.byref(to), message, size, ctypes.byref(tag)
        length = library.rdmesh_memcached_request(*arguments)
        if length < 0:
            return None
        self.connection.send(message.raw[:length], at, at + MESSAGE, HEAD)
        return tag.value, to.room

    def judge(self, tag, place, length, room):
        """What a reply says: its kind, and the value of the key where that is it."""
        at = place * PLACE + MESSAGE
        head, item = self.connection.read(at, length), self.connection.read(at + HEAD, room)
        answer = Answer()
        now = ctypes.c_uint32(int(time.monotonic() - self.began))
        sizes = ctypes.c_size_t(len(head)), ctypes.c_size_t(len(item))
        library.rdmesh_memcached_reply(self.client, ctypes.c_uint32(tag), head, sizes[0], item, sizes[1], now, ctypes.byref(answer))
        if answer.kind == TOO_LONG:
            self.room = max(self.room, min(answer.length, MOST))
            return (CHANGED if answer.length <= MOST else ELSEWHERE), None
        return answer.kind, ctypes.string_at(answer.value, answer.length) if answer.kind == VALUE else None

    def get(self, keys):
        """The values of those keys that chains answer."""
        values, waiting, free, tries = {}, {}, list(range(OUTSTANDING)), dict.fromkeys(keys, TRIES)
        todo = list(tries)
        while todo or waiting:
            while todo and free:
                key, place = todo.pop(0), free.pop()
                tries[key] -= 1
                asked = self.ask(key, place)
                if asked is None:
                    free.append(place)
                else:
                    waiting[asked[0]] = key, place, asked[1]
            if not waiting:
                continue
            tag, length = self.connection.reply()
            # Another tag is that of a second reply to an earlier request.
            if tag in waiting:
                key, place, room = waiting.pop(tag)
                kind, value = self.judge(tag, place, length, room)
                free.append(place)
                if kind == VALUE:
                    values[key] = value
                elif kind == CHANGED and tries[key] > 0:
                    todo.append(key)
        return values


class Client:
    """A memcached: its socket, and a chain if it gives us one."""

    def __init__(self, host, port):
        self.stream = socket.create_connection((host, port))
        self.file = self.stream.makefile("rb")
        self.chain = None
        try:
            self.chain = Chain(host, port + 1, int(self.statistics()[b"uptime"]))
        except (Ended, OSError) as error:
            print(f"without a chain: {error}", file=sys.stderr)

    def line(self):
        """The next line of an answer."""
        line = self.file.readline()
        if not line:
            raise Ended("the server has gone")
        return line.rstrip(b"\r\n")

    def command(self, line, data=None):
        """Sends a command; returns the first line of its answer."""
        try:
            self.stream.sendall(line + b"\r\n" + (b"" if data is None else data + b"\r\n"))
            return self.line()
        except OSError as error:
            raise Ended("the server has gone") from error

    def statistics(self):
        """What `stats` says."""
        line, found = self.command(b"stats"), {}
        while line != b"END":
            _, name, value = line.split(b" ", 2)
            found[name] = value
            line = self.line()
        return found

    def get_by_socket(self, key):
        """The value of a key; none where there is none."""
        answer = self.command(b"get " + key)
        if answer == b"END":
            return None
        length = int(answer.split()[3])
        # The value, the end of its line, and the end of the answer.
        return self.file.read(length + 7)[:length]

    def get(self, keys):
        """The way by which each key's value came, and the value."""
        values = {}
        try:
            values = self.chain.get(keys) if self.chain else {}
        except Ended:
            self.chain = None
        for key in keys:
            value = values.get(key)
            way = "chain" if value is not None else "socket"
            if value is None:
                try:
                    value = self.get_by_socket(key)
                except Ended:
                    value = None
            yield way, value


def obey(client, line):
    """Does what a line says, and prints the answer."""
    verb, *words = line.split(b" ", 2)
    if verb == b"get":
        for way, value in client.get(line.split()[1:]):
            print("miss" if value is None else f"{way} {value.decode()}")
        return
    data = words[1] if verb == b"set" else None
    try:
        print(client.command(line if data is None else b"set %s 0 0 %d" % (words[0], len(data)), data).decode())
    except Ended as ended:
        print(ended)


def main():
    client = Client(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 11211)
    for line in sys.stdin.buffer:
        obey(client, line.rstrip(b"\n"))
        sys.stdout.flush()


main()
