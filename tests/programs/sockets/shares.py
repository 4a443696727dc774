#!/usr/bin/env python3
"""How evenly connections share the way between two endpoints.

shares.py serve PORT CONNECTIONS SECONDS                    counts what each connection brings in that time
shares.py pour ADDRESS PORT CONNECTIONS PROCESSES           sends on all of them, from so many processes, until the server closes

`serve` prints "JAIN MEGABYTES LEAST MOST": Jain's index of fairness of the connections, all bytes, and those of the least and of the
most served connection, in kilobytes.
"""
import os
import selectors
import socket
import sys
import time

PIECE = bytes(16 << 10)


def look(selector, counts, until):
    while (left := until - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            counts[key.data] += len(key.fileobj.recv(len(PIECE)))


def serve(port, connections, seconds):
    with socket.create_server(("", port), backlog=512) as listening:
        socks = [listening.accept()[0] for _ in range(connections)]
    selector = selectors.DefaultSelector()
    for n, sock in enumerate(socks):
        selector.register(sock, selectors.EVENT_READ, n)
    counts = [0] * connections
    # All have left TCP by then.
    look(selector, counts, time.monotonic() + seconds)
    counts = [0] * connections
    look(selector, counts, time.monotonic() + seconds)
    total = sum(counts)
    jain = total**2 / (connections * sum(count**2 for count in counts))
    print(f"{jain:.3f} {total / 1e6:.0f} {min(counts) / 1e3:.0f} {max(counts) / 1e3:.0f}", flush=True)


def pour(address, port, connections):
    selector = selectors.DefaultSelector()
    for _ in range(connections):
        sock = socket.create_connection((address, port))
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_WRITE)
    while True:
        for key, _ in selector.select():
            try:
                key.fileobj.send(PIECE)
            except BlockingIOError:
                pass


def main(mode, *arguments):
    if mode == "serve":
        return serve(*map(int, arguments))
    address, (port, connections, processes) = arguments[0], map(int, arguments[1:])
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    try:
        pour(address, port, connections // processes)
    except (BrokenPipeError, ConnectionResetError):
        pass


main(*sys.argv[1:])
