#!/usr/bin/python3
"""Clients of `services - list_loop lock counter` in Python, through pyverbs: a walk of a list, a lock and a counter."""
import ctypes
import os
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../../examples/chains"))
from connection import Connection

PORT = 18641
OUTSTANDING, REPLY, MESSAGE = 2, 1024, 64  # requests at a time, and bytes
OWNER = 7  # of the lock service's client

library = ctypes.CDLL(None)


class Answer(ctypes.Structure):
    """`struct rdmesh_answer`."""

    _fields_ = [("kind", ctypes.c_uint32), ("version", ctypes.c_uint32), ("value", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class LockAnswer(ctypes.Structure):
    """`struct rdmesh_lock_answer`."""

    _fields_ = [("kind", ctypes.c_uint32), ("holder", ctypes.c_uint32), ("lease", ctypes.c_uint64)]


class CounterAnswer(ctypes.Structure):
    """`struct rdmesh_counter_answer`."""

    _fields_ = [("kind", ctypes.c_uint32), ("value", ctypes.c_uint64)]


class Service:
    """A connection to the server's next service."""

    def __init__(self, stream):
        assert stream.recv(1) == b"\x01", "one queue pair replies"
        self.stream = stream
        self.connection = Connection(OUTSTANDING * (REPLY + MESSAGE), OUTSTANDING)
        self.connection.meet(stream)

    def send(self, place, function, *arguments):
        """Encodes a message and sends it; its reply comes to a place."""
        message = ctypes.create_string_buffer(MESSAGE)
        length = function(*arguments, message, ctypes.c_size_t(MESSAGE))
        assert length > 0
        at = OUTSTANDING * REPLY + place * MESSAGE
        self.connection.send(message.raw[:length], at, place * REPLY, REPLY)

    def reply(self, place):
        """Immediate data and bytes of the next reply, which comes to a place."""
        imm, length = self.connection.reply()
        return imm, self.connection.read(place * REPLY, length)

    def end(self):
        """Lets the server go on to the next service."""
        self.stream.sendall(b"d")


def walk_list(service):
    """Values of a list; all but "three" are in it."""
    library.rdmesh_list_client_new.restype = ctypes.c_void_p
    walks = ctypes.c_void_p(library.rdmesh_list_client_new())
    head = ctypes.c_uint64(32 * 5)
    mr = service.connection.mr
    found = []
    for key in [b"one", b"three", b"five", b"none"]:
        tag = ctypes.c_uint32()

        def request(message, size):
            sizes = ctypes.c_size_t(len(key)), ctypes.c_uint64(mr.buf), ctypes.c_uint32(mr.rkey)
            return library.rdmesh_list_request(walks, head, key, *sizes, message, size, ctypes.byref(tag))

        service.send(0, request)
        imm, reply = service.reply(0)
        assert imm == tag.value
        answer = Answer()
        library.rdmesh_list_reply(walks, tag, reply, ctypes.c_size_t(len(reply)), ctypes.byref(answer))
        found.append(ctypes.string_at(answer.value, answer.length).decode() if answer.kind == 0 else "-")
    print("list", *found)


def take_lock(service):
    """Takes a lock twice, of which the second attempt fails, and gives it back."""

    def attempt(function, *arguments):
        service.send(0, function, ctypes.c_uint64(2), *arguments)
        _, reply = service.reply(0)
        answer = LockAnswer()
        assert library.rdmesh_lock_reply(ctypes.c_uint32(OWNER), reply, ctypes.c_size_t(len(reply)), ctypes.byref(answer)) == 0
        return answer

    first = attempt(library.rdmesh_lock_acquire, ctypes.c_uint32(1))
    second = attempt(library.rdmesh_lock_acquire, ctypes.c_uint32(2))
    assert (second.holder, second.lease) == (OWNER, first.lease)
    third = attempt(library.rdmesh_lock_release, ctypes.c_uint64(first.lease), ctypes.c_uint32(3))
    print("lock", first.kind, second.kind, third.kind)


def count(service):
    """Adds to a counter whose bound is 10, two requests at a time."""
    changes, kinds = [7, 4, 3, -10, -1, 2], []
    for pair in range(0, len(changes), 2):
        for place in range(2):
            number = pair + place
            arguments = ctypes.c_uint64(1), ctypes.c_int64(changes[number]), ctypes.c_uint32(number)
            service.send(place, library.rdmesh_counter_add, *arguments)
        for place in range(2):
            imm, reply = service.reply(place)
            answer = CounterAnswer()
            assert library.rdmesh_counter_reply(reply, ctypes.c_size_t(len(reply)), ctypes.byref(answer)) == 0
            kinds.append(f"{imm}:{answer.kind}:{answer.value}")
    print("counter", *kinds)


def main():
    stream = socket.create_connection((sys.argv[1], PORT))
    for client in (walk_list, take_lock, count):
        service = Service(stream)
        client(service)
        service.end()


main()
