"""A function in an endpoint of a pool: what it binds, connects to and tries beyond its address.

Each command prints what happened, one line each, and the last ones wait until standard input ends.
"""

import array
import errno
import os
import socket
import struct
import subprocess
import sys

with open("/sys/class/infiniband/rxe0/ports/1/gids/1") as gid:
    OWN = socket.inet_ntoa(bytes.fromhex(gid.read().strip().replace(":", ""))[12:])
NEIGHBOUR, *ARGUMENTS = sys.argv[2:]
LIMIT = 5
IP_FREEBIND, IP_TRANSPARENT, IP_PKTINFO = 15, 19, 8


def say(*words):
    print(*words, flush=True)


def outcome(attempt):
    """What a call did, as a word: `done`, or the name of its error."""
    try:
        attempt()
        return "done"
    except TimeoutError:
        return "timeout"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def tcp(family=socket.AF_INET):
    s = socket.socket(family)
    s.settimeout(LIMIT)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return s


def listener(address, port, family=socket.AF_INET, options=()):
    s = tcp(family)
    for level, name, value in options:
        s.setsockopt(level, name, value)
    s.bind((address, port))
    s.listen()
    return s


def wait():
    say("ready")
    sys.stdin.read()


def ordinary():
    """What unmodified programs do; all of it works as with a namespace of one's own."""
    wild = listener("0.0.0.0", 18770)
    say("wildcard", wild.getsockname()[0] == OWN)
    local = listener("127.0.0.1", 18771)
    say("loopback", local.getsockname()[0])
    client = socket.create_connection(("127.0.0.1", 18771), LIMIT)
    accepted, peer = local.accept()
    ends = [client.getsockname(), client.getpeername(), accepted.getsockname(), accepted.getpeername(), peer]
    say("connection", *(address for address, _ in ends))
    client = socket.create_connection(("localhost", 18770), LIMIT)
    accepted, _ = wild.accept()
    client.sendall(b"x" * 100_000)
    client.close()
    got = 0
    while piece := accepted.recv(65536):
        got += len(piece)
    say("bytes", got)
    both = listener("::", 18772, socket.AF_INET6)
    client = socket.create_connection((OWN, 18772), LIMIT)
    say("dual stack", both.accept()[1][0] == "::ffff:" + OWN)
    server, client = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    server.settimeout(LIMIT), client.settimeout(LIMIT)
    server.bind(("127.0.0.1", 18773))
    client.sendto(b"question", ("127.0.0.1", 18773))
    _, sender = server.recvfrom(64)
    server.sendto(b"answer", sender)
    say("datagrams", sender[0], *client.recvfrom(64)[1])
    wait()


def reach():
    """What a program reaches of its neighbour, which runs `ordinary`."""
    say("wildcard", outcome(lambda: socket.create_connection((NEIGHBOUR, 18770), LIMIT)))
    with socket.create_connection((NEIGHBOUR, 18770), LIMIT) as s:
        say("source", s.getsockname()[0] == OWN)
    for name, address in (("loopback", NEIGHBOUR), ("own loopback", "127.0.0.1")):
        connected = outcome(lambda: socket.create_connection((address, 18771), 1))
        say(name, connected != "done")
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(b"to another's loopback", (NEIGHBOUR, 18773))


def escapes():
    """Ways to another's address; none of them leads there."""
    mapped = "::ffff:" + NEIGHBOUR
    v6, free = socket.AF_INET6, [(socket.SOL_IP, IP_FREEBIND, 1)]
    say("bind", outcome(lambda: listener(NEIGHBOUR, 18775)))
    say("bind mapped", outcome(lambda: listener(mapped, 18775, v6)))
    say("free bind", outcome(lambda: listener(NEIGHBOUR, 18775, options=free)))
    say("transparent", outcome(lambda: tcp().setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)))
    say("raw", outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)))
    say("packet", outcome(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)))
    say("address", outcome(add_address))
    say("device", outcome(lambda: listener(NEIGHBOUR, 18775, options=[(socket.SOL_SOCKET, 25, b"eth0\0")])))
    parent = "/sys/fs/cgroup/" if os.path.exists("/sys/fs/cgroup/cgroup.procs") else "/sys/fs/cgroup/unified/"
    if os.geteuid() != 0:
        say("group", outcome(lambda: open(parent + "cgroup.procs", "w").write(str(os.getpid()))))
    # A source address beside a datagram is replaced by the own one, or refused.
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    info = struct.pack("=i4s4s", 0, socket.inet_aton(NEIGHBOUR), bytes(4))
    control = [(socket.SOL_IP, IP_PKTINFO, info)]
    say("source", outcome(lambda: s.sendmsg([b"from another"], control, 0, (ARGUMENTS[0], 18774))))
    # A listener that never called bind has the wildcard address, whatever the programs do; so has a datagram socket.
    silent = tcp()
    silent.listen()
    say("listener", silent.getsockname()[1])
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.settimeout(2)
    datagrams.sendto(b"opens a port", (ARGUMENTS[0], 18774))
    say("datagrams", datagrams.getsockname()[1])
    say("ready")
    silent.settimeout(LIMIT)
    say("accepted", silent.accept()[0].getsockname()[0] == OWN)
    silent.settimeout(2)
    say("accepted another's", outcome(silent.accept))
    say("received", outcome(lambda: datagrams.recvfrom(64)))


def add_address():
    done = subprocess.run(["ip", "address", "add", NEIGHBOUR + "/32", "dev", "lo"], stderr=subprocess.PIPE)
    if done.returncode:
        raise OSError(errno.EPERM, done.stderr)


def both_families():
    """Wildcards and loopback where the endpoint has an address of each family; the arguments are its own two."""
    v6, only = socket.AF_INET6, [(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)]
    own4, own6 = ARGUMENTS[0], ARGUMENTS[1]
    alone = listener("::", 18780, v6, only)
    say("only IPv6", alone.getsockname()[0] == own6, listener("0.0.0.0", 18780).getsockname()[0] == own4)
    say("dual stack", listener("::", 18781, v6).getsockname()[0] == "::ffff:" + own4)
    local = listener("::1", 18782, v6)
    client = socket.create_connection(("::1", 18782), LIMIT)
    accepted, peer = local.accept()
    say("loopback", client.getsockname()[0], client.getpeername()[0], accepted.getsockname()[0], peer[0])
    client = socket.create_connection((own6, 18780), LIMIT)
    say("source", client.getsockname()[0] == own6 and alone.accept()[1][0] == own6)
    server, client = (socket.socket(v6, socket.SOCK_DGRAM) for _ in range(2))
    server.settimeout(LIMIT)
    server.bind(("::1", 18783))
    client.sendto(b"question", ("::1", 18783))
    say("datagrams", server.recvfrom(64)[1][0])
    for other in (NEIGHBOUR, "fe80::1"):
        say("bind", outcome(lambda: listener(other, 18784, v6)))


def give():
    """Passes a listening socket of its own to another function."""
    with socket.socket(socket.AF_UNIX) as way:
        way.bind(ARGUMENTS[0])
        way.listen()
        os.chmod(ARGUMENTS[0], 0o777)
        say("ready")
        taker, _ = way.accept()
        sockets = [listener("0.0.0.0", 18776), tcp()]
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno() for s in sockets]))]
        taker.sendmsg([b"x"], ancillary)
        wait()


def take():
    """Uses sockets that another function has made: they are that one's."""
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(ARGUMENTS[0])
        _, ancillary, _, _ = way.recvmsg(1, socket.CMSG_SPACE(8))
        given, fresh = array.array("i", ancillary[0][2])
        say("given", socket.socket(fileno=given).getsockname()[0] == NEIGHBOUR)
        say("fresh", outcome(lambda: socket.socket(fileno=fresh).bind((OWN, 18777))))


def leave():
    """Leaves a daemon behind that holds a port."""
    held = listener("0.0.0.0", 18778)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            sys.stdout.close()
            os.close(1)
            os.close(2)
            held.settimeout(None)
            held.accept()
        os._exit(0)
    os.wait()
    say("left")


globals()[sys.argv[1]]()
