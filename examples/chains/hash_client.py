#!/usr/bin/python3
"""A client of hash_server in Python, through pyverbs: asks for keys, several at a time, and prints their values.

    rdmesh run --name a --net blue --ip 10.7.0.2 -- examples/chains/hash_server
    rdmesh run --name b --net blue --ip 10.7.0.3 -- examples/chains/hash_client.py 10.7.0.2 one two nothing

Messages and replies are encoded by the library that `rdmesh run` has loaded into this process; all else is plain verbs.
"""
import ctypes
import socket
import sys

from connection import Connection, Ended

PORT = 18640
OUTSTANDING = 4  # requests at a time; the server's chain has more instances
RECORD, MESSAGE = 4096, 64  # bytes of a reply and of a message
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
    """A reliable connection to the server's chain."""

    def __init__(self, stream):
        if not hasattr(library, "rdmesh_chain_error"):
            sys.exit("there is no library: is this run by `rdmesh run`?")
        self.connection = Connection(OUTSTANDING * (RECORD + MESSAGE), OUTSTANDING)
        self.connection.meet(stream)
        self.keys = Keys()

    def ask(self, key, place):
        """Asks for a key. The reply comes to one of OUTSTANDING places, and has the tag that is returned."""
        mr = self.connection.mr
        message, tag = self.keys.message(key, mr.buf + place * RECORD, mr.rkey)
        self.connection.send(message, OUTSTANDING * RECORD + place * MESSAGE, place * RECORD, RECORD)
        return tag

    def get(self, keys):
        """The value of each key, or why there is none."""
        answers, waiting, free = {}, {}, list(range(OUTSTANDING))
        todo = list(dict.fromkeys(keys))
        while todo or waiting:
            while todo and free:
                key, place = todo.pop(0), free.pop()
                waiting[self.ask(key, place)] = key, place
            tag, length = self.connection.reply()
            # Another tag is that of a second reply to an earlier request.
            if tag in waiting:
                key, place = waiting.pop(tag)
                answers[key] = self.keys.answer(tag, self.connection.read(place * RECORD, length))
                free.append(place)
        return answers


def main():
    keys = [key.encode() for key in sys.argv[2:]]
    try:
        answers = Client(socket.create_connection((sys.argv[1], PORT))).get(keys)
    except Ended as ended:
        sys.exit(str(ended))
    for key in keys:
        value = answers[key]
        print(f"{key.decode()}: {value.decode()}" if isinstance(value, bytes) else f"{key.decode()} ({value})")


main()
