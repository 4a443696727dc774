#!/usr/bin/env python3
"""Runs commands in another endpoint, as rsh and ssh do, for launchers of MPI programs.

    remote.py --serve PORT          in every endpoint
    remote.py ADDRESS COMMAND...    runs COMMAND, words for a shell, at ADDRESS; its output is ours, and its exit status

Whoever reaches the port may run anything: for tests only. The port is in $REMOTE_PORT.
"""
import os
import socket
import subprocess
import sys


def serve(port):
    listener = socket.create_server(("", port))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            handle(connection)
            os._exit(0)
        connection.close()


def handle(connection):
    command = connection.makefile("r").readline()
    status = subprocess.call(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=connection, stderr=connection)
    connection.sendall(b"\0%d" % (status % 256))


def run(address, command):
    connection = socket.create_connection((address, int(os.environ["REMOTE_PORT"])))
    connection.sendall(command.replace("\n", " ").encode() + b"\n")
    tail = b""
    while data := connection.recv(65536):
        text, mark, status = (tail + data).partition(b"\0")
        os.write(1, text)
        tail = mark + status
    return int(tail[1:] or b"255")


if sys.argv[1] == "--serve":
    serve(int(sys.argv[2]))
sys.exit(run(sys.argv[1], " ".join(sys.argv[2:])))
