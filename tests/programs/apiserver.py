#!/usr/bin/env python3
"""An API server of Kubernetes, as far as who watches pods, namespaces and NetworkPolicies meets it: lists, and watches from a version.

Prints the port of its HTTP server. A test directs it by lines of JSON on standard input, and each is answered by an empty line:

  {"set": OBJECT}      the object, with its kind, is there as it is now
  {"remove": OBJECT}   it is not
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

PATHS = {
    "/api/v1/pods": ("v1", "Pod"),
    "/api/v1/namespaces": ("v1", "Namespace"),
    "/apis/networking.k8s.io/v1/networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
}

changed = threading.Condition()
# Every change that ever was, as (version, type, object); its number is its version.
history = []


def key(thing):
    return thing["kind"], thing["metadata"].get("namespace"), thing["metadata"]["name"]


def present(kind):
    things = {}
    for change, thing in history:
        things[key(thing)] = None if change == "DELETED" else thing
    return [thing for (own, _, _), thing in things.items() if own == kind and thing]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        url = urlparse(self.path)
        if url.path not in PATHS:
            return self.send_error(404)
        version, kind = PATHS[url.path]
        query = parse_qs(url.query)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        if "watch" in query:
            return self.watch(kind, int(query["resourceVersion"][0]))
        with changed:
            items, now = present(kind), len(history)
        listed = {"apiVersion": version, "kind": kind + "List", "metadata": {"resourceVersion": str(now)}, "items": items}
        self.wfile.write(json.dumps(listed).encode())

    def watch(self, kind, seen):
        known = {key(thing) for change, thing in history[:seen] if change != "DELETED"}
        while True:
            with changed:
                changed.wait_for(lambda: len(history) > seen)
                new, seen = history[seen:], len(history)
            for change, thing in new:
                if thing["kind"] == kind:
                    event = {"type": change or ("MODIFIED" if key(thing) in known else "ADDED"), "object": thing}
                    known.add(key(thing))
                    self.wfile.write(json.dumps(event).encode() + b"\n")


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    versions = dict(map(reversed, PATHS.values()))
    for line in sys.stdin:
        order = json.loads(line)
        thing = order.get("set") or order["remove"]
        with changed:
            thing["apiVersion"] = versions[thing["kind"]]
            thing["metadata"].update(resourceVersion=str(len(history) + 1), uid="-".join(map(str, key(thing))))
            history.append((None if "set" in order else "DELETED", thing))
            changed.notify_all()
        print(flush=True)


if __name__ == "__main__":
    main()
