#!/usr/bin/env python3
"""Streams whose bytes are known: each end checks every byte that it receives.

streams.py serve PORT CONNECTIONS MEGABYTES       accepts, and exchanges with each client at once
streams.py connect ADDRESS PORT CONNECTIONS MEGABYTES
streams.py echo PORT                              answers each connection in a child, in turn
streams.py cat PORT                               after four answers leaves the connection to cat
streams.py ask ADDRESS PORT QUESTIONS             asks echo or cat, question by question
streams.py mirror PORT CONNECTIONS                sends everything back
streams.py quiz ADDRESS PORT CONNECTIONS FILE     asks a mirror on all of them, until the file exists
streams.py give PORT BYTES                        sends so many bytes to a client after its word, and kills itself
streams.py take ADDRESS PORT BYTES                receives them, and the end
streams.py fill PORT CONNECTIONS                  sends until there is no room, and the rest when the reader goes on
streams.py pause ADDRESS PORT CONNECTIONS FILE    reads from it when the file exists
streams.py swap PORT BYTES [ADDRESS]              sends so many bytes before it reads those of the other end, which does the same
streams.py noise SECONDS                          says to the endpoint's relay whatever comes to mind
"""
import fcntl
import hashlib
import mmap
import os
import random
import signal
import socket
import struct
import sys
import threading
import time

# Of any two ends both ways differ.
BLOCK = 1 << 16


def pattern(name):
    """Endless bytes that depend on the name, block by block."""
    n = 0
    while True:
        seed = hashlib.sha256(f"{name} {n}".encode()).digest()
        yield (seed * (BLOCK // len(seed) + 1))[:BLOCK]
        n += 1


class Bytes:
    """Takes bytes out of a pattern, as many as are asked for."""

    def __init__(self, name):
        self.blocks, self.rest = pattern(name), b""

    def take(self, count):
        while len(self.rest) < count:
            self.rest += next(self.blocks)
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken


def exchange(sock, own, peer, total, failures):
    """Sends and receives at the same time, in pieces of random length, until both ends have shut down."""
    chance = random.Random(own)

    def send():
        out, left = Bytes(own), total
        while left:
            piece = out.take(min(left, chance.choice([1, 7, 100, 4096, 60000, 200000])))
            sock.sendall(piece)
            left -= len(piece)
        sock.shutdown(socket.SHUT_WR)

    def receive():
        expected, got = Bytes(peer), 0
        while True:
            piece = sock.recv(chance.choice([1, 100, 5000, 1 << 17]))
            if not piece:
                break
            if piece != expected.take(len(piece)):
                raise ValueError(f"{own}: wrong bytes after {got}")
            got += len(piece)
        if got != total:
            raise ValueError(f"{own}: {got} bytes of {total}")

    def guarded(work):
        try:
            work()
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"{own}: {error!r}")
            sock.close()

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (send, receive)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    sock.close()


def run_all(socks, own, peer, total):
    failures = []
    ends = [(sock, f"{own} {n}", f"{peer} {n}", total, failures) for n, sock in socks]
    threads = [threading.Thread(target=exchange, args=end) for end in ends]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("\n".join(failures) or f"{len(threads)} streams are right", flush=True)
    sys.exit(bool(failures))


def listener(port):
    return socket.create_server(("", port), backlog=512, reuse_port=False)


def word(sock):
    """The number of a connection, which its client says first."""
    text = b""
    while not text.endswith(b"\n"):
        text += sock.recv(1)
    return int(text)


def serve(port, connections, megabytes):
    with listener(int(port)) as listening:
        socks = [listening.accept()[0] for _ in range(int(connections))]
    run_all([(word(sock), sock) for sock in socks], "server", "client", int(megabytes) << 20)


def connect(address, port, connections, megabytes):
    socks = [(n, socket.create_connection((address, int(port)))) for n in range(int(connections))]
    for n, sock in socks:
        sock.sendall(b"%d\n" % n)
    run_all(socks, "client", "server", int(megabytes) << 20)


def echo(port):
    with listener(int(port)) as listening:
        while True:
            sock, _ = listening.accept()
            # The parent has used the connection, the child goes on.
            sock.sendall(sock.recv(1 << 16))
            if os.fork() == 0:
                while data := sock.recv(1 << 16):
                    sock.sendall(data)
                os._exit(0)
            sock.close()


def cat(port):
    with listener(int(port)) as listening:
        sock, _ = listening.accept()
    for _ in range(4):
        sock.sendall(sock.recv(1 << 16))
    os.dup2(sock.fileno(), 0)
    os.dup2(sock.fileno(), 1)
    os.execvp("cat", ["cat"])


def put(sock, question, n):
    """Asks, and waits for the same bytes as the answer."""
    sock.sendall(question)
    answer = b""
    while len(answer) < len(question):
        piece = sock.recv(1 << 16)
        if not piece:
            raise ValueError(f"an end in question {n}")
        answer += piece
    if answer != question:
        raise ValueError(f"a wrong answer to question {n}")


def ask(address, port, questions):
    with socket.create_connection((address, int(port))) as sock:
        for n in range(int(questions)):
            question = b"%d " % n * (1 + n % 500)
            put(sock, question, n)
        sock.shutdown(socket.SHUT_WR)
        if sock.recv(1):
            raise ValueError("more than was asked for")
    print("all answers are right")


def mirror(port, connections):
    """Sends everything back, on so many connections at once, until their ends."""

    def answer(sock):
        while data := sock.recv(1 << 16):
            sock.sendall(data)
        sock.close()

    with listener(int(port)) as listening:
        socks = [listening.accept()[0] for _ in range(int(connections))]
    threads = [threading.Thread(target=answer, args=(sock,)) for sock in socks]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("all ends have come")


def quiz(address, port, connections, stop):
    """Asks a mirror on so many connections at once, until there is a file `stop`."""
    failures, counts = [], [0] * int(connections)

    def questions(number):
        try:
            out, chance = Bytes(f"quiz {number}"), random.Random(number)
            with socket.create_connection((address, int(port))) as sock:
                while not os.path.exists(stop):
                    put(sock, out.take(chance.choice([1, 100, 3000, 20000])), counts[number])
                    counts[number] += 1
                    time.sleep(0.002)
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"connection {number}: {error!r}")

    threads = [threading.Thread(target=questions, args=(number,)) for number in range(len(counts))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("\n".join(failures) or f"all {sum(counts)} answers are right", flush=True)
    sys.exit(bool(failures))


# Exchanged at first, so that rings are there when bytes are given.
WORDS = 30


def give(port, count):
    with listener(int(port)) as listening:
        sock, _ = listening.accept()
    out, left = Bytes("given"), int(count)
    for _ in range(WORDS):
        sock.sendall(sock.recv(16))
    while left:
        piece = out.take(min(left, 50000))
        sock.sendall(piece)
        left -= len(piece)
    os.kill(os.getpid(), signal.SIGKILL)


def take(address, port, count):
    expected, got = Bytes("given"), 0
    with socket.create_connection((address, int(port))) as sock:
        for _ in range(WORDS):
            sock.sendall(b"word")
            assert sock.recv(4) == b"word"
            time.sleep(0.01)
        while piece := sock.recv(4096):
            if piece != expected.take(len(piece)):
                raise ValueError(f"wrong bytes after {got}")
            got += len(piece)
    if got != int(count):
        raise ValueError(f"{got} bytes of {count}")
    print("all bytes are right")


FILLED = 16 << 20


def fill(port, connections):
    """Sends to readers that pause until there is no room, and the rest when they go on."""
    listening = listener(int(port))
    socks = [listening.accept()[0] for _ in range(int(connections))]
    ends = []
    for n, sock in enumerate(socks):
        # Some have moved to rings before, and some can do so only when TCP's queue is full.
        if n % 2:
            [sock.sendall(sock.recv(16)) for _ in range(8)]
        out, left, tries = Bytes(f"filled {n}"), FILLED, 0
        piece = out.take(1 << 16)
        sock.setblocking(False)
        while tries < 4:
            try:
                sent = sock.send(piece)
                left, piece = left - sent, piece[sent:] or out.take(1 << 16)
            except BlockingIOError:
                tries += 1
                time.sleep(0.1)
        ends.append((sock, out, piece, left))
    print("full", flush=True)
    for sock, out, piece, left in ends:
        sock.setblocking(True)
        sock.sendall(piece)
        sock.sendall(out.take(left - len(piece)))
        if sock not in socks[1::2]:
            assert sock.recv(8, socket.MSG_WAITALL) == b"12345678"
        # The reader may have something to say of the way back, to a socket that is closed by then.
        sock.close()
    # Its endpoint ends with it, and what is on its way with that.
    listening.accept()


def pause(address, port, connections, path):
    """Readers that pause until the file exists."""
    socks = [socket.create_connection((address, int(port))) for _ in range(int(connections))]
    for n, sock in enumerate(socks):
        for digit in b"12345678":
            if n % 2:
                sock.sendall(b"word")
                assert sock.recv(4) == b"word"
            else:
                sock.sendall(bytes([digit]))
                time.sleep(0.02)
    while not os.path.exists(path):
        time.sleep(0.01)
    for n, sock in enumerate(socks):
        expected, got = Bytes(f"filled {n}"), 0
        while piece := sock.recv(1 << 16):
            if piece != expected.take(len(piece)):
                raise ValueError(f"{n}: wrong bytes after {got}")
            got += len(piece)
        if got != FILLED:
            raise ValueError(f"{n}: {got} bytes of {FILLED}")
    socket.create_connection((address, int(port))).close()
    print(f"{len(socks)} streams are right", flush=True)


def gulp(port, count):
    """Reads so many bytes of each connection, answers, and closes."""
    with listener(int(port)) as listening:
        while True:
            sock, _ = listening.accept()
            with sock:
                left = int(count)
                while left:
                    left -= len(sock.recv(min(left, 1 << 16)))
                sock.sendall(b"done")


def pour(address, port, count, times):
    """Sends as many on a connection after the other, and takes the answer and the end."""
    for n in range(int(times)):
        with socket.create_connection((address, int(port))) as sock:
            sock.sendall(bytes(int(count)))
            answer = b""
            while piece := sock.recv(100):
                answer += piece
            if answer != b"done":
                raise ValueError(f"{answer} on connection {n}")
    print("all answers are right")


def part(port):
    """Answers, says goodbye and closes, without waiting for the other end; goes on until it is killed."""
    with listener(int(port)) as listening:
        sock, _ = listening.accept()
        with sock:
            while (text := sock.recv(16)) != b"stop":
                sock.sendall(text)
            sock.sendall(b"goodbye")
    # Its end would take its interface with it, which answers for the closed socket.
    signal.pause()


def outlive(address, port, most):
    """What is written first after the other end has closed is taken; only then does TCP know."""
    with socket.create_connection((address, int(port))) as sock:
        def acked():
            # tcpi_bytes_acked of linux/tcp.h.
            return struct.unpack_from("=Q", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 120)[0]

        # On rings TCP's count stands still.
        before, rounds = -1, 0
        while acked() != before and rounds < int(most):
            before, rounds = acked(), rounds + 1
            for _ in range(100):
                sock.sendall(b"word")
                assert sock.recv(4) == b"word"
        is_on_ring = acked() == before
        sock.sendall(b"stop")
        text = b""
        while piece := sock.recv(100):
            text += piece
        assert text == b"goodbye", text
        time.sleep(0.1)
        assert sock.send(b"late") == 4
        time.sleep(0.1)
        try:
            sock.send(b"too late")
            sock.send(b"too late")
            raise ValueError("nobody is there")
        except (BrokenPipeError, ConnectionResetError):
            print("the end is right,", "on rings" if is_on_ring else "on TCP")


def noise(seconds):
    """Messages of all kinds with any numbers and descriptors, on many connections, in and out of order."""
    chance, path = random.Random(1), os.path.join(os.environ["RDMESH_ENDPOINT"], "streams.sock")
    until, sent = time.monotonic() + float(seconds), 0

    def memory(length, sealed):
        fd = os.memfd_create("noise", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, length)
        if sealed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return fd

    # A slot, an inbox, a socket, and what is none of these.
    slot, inbox = memory(4096 + 2 * (128 << 10), True), memory(1 << 20, True)
    fds = [slot, inbox, memory(100, True), memory(1 << 20, False), os.open("/dev/null", os.O_RDWR), *os.pipe()]
    fds += [socket.socket().fileno(), socket.create_server(("", 0)).detach(), os.eventfd(0)]
    words = mmap.mmap(slot, 4096)
    while time.monotonic() < until:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(path)
            link.setblocking(False)
            if chance.random() < 0.9:
                socket.send_fds(link, [struct.pack("=II", 1, 5)], [inbox])
            for _ in range(chance.randrange(60)):
                at = chance.randrange(0, 1024, 8)
                words[at : at + 8] = chance.randbytes(8)
                kind = chance.choice([1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9, chance.getrandbits(32)])
                text = struct.pack("=II", kind, chance.choice([0, 1, 255, 256, 16384, chance.getrandbits(32)]))
                text = chance.choice([text] * 9 + [text[: chance.randrange(8)], text * 100])
                try:
                    socket.send_fds(link, [text], chance.choices(fds, k=chance.randrange(4)))
                except OSError:
                    break
                sent += 1
    print(f"{sent} messages were sent")


def swap(port, size, address=None):
    """What one end sends before it reads has to have room somewhere."""
    if address is None:
        sock = socket.create_server(("", int(port))).accept()[0]
    else:
        sock = socket.create_connection((address, int(port)))
    own, peer = ("server", "client") if address is None else ("client", "server")
    # Long enough for rings to come.
    for _ in range(100):
        sock.sendall(b"word")
        assert sock.recv(4, socket.MSG_WAITALL) == b"word"
        time.sleep(0.01)
    sock.sendall(Bytes(own).take(int(size)))
    received = sock.recv(int(size), socket.MSG_WAITALL)
    if received != Bytes(peer).take(int(size)):
        raise ValueError(f"{own}: wrong bytes")
    print(f"{len(received)} bytes are right", flush=True)


if __name__ == "__main__":
    roles = [serve, connect, echo, cat, ask, mirror, quiz, give, take, fill, pause, gulp, pour, part, outlive, swap, noise]
    {role.__name__: role for role in roles}[sys.argv[1]](*sys.argv[2:])
