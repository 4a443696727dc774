#!/usr/bin/env python3
"""An API server of Kubernetes, as far as rdmesh's programs meet it: objects by name, lists, watches from a version, changes.

Prints the port of its HTTP server. A test directs it by lines of JSON on standard input, and each is answered by an empty line:

  {"set": OBJECT}      the object, with its kind, is there as it is now
  {"remove": OBJECT}   it is not

or, where it asks for something, by a list of JSON:

  {"list": KIND}       objects of a kind
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

PATHS = {
    "/api/v1/pods": ("v1", "Pod"),
    "/api/v1/namespaces": ("v1", "Namespace"),
    "/api/v1/nodes": ("v1", "Node"),
    "/apis/networking.k8s.io/v1/networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy"),
    "/apis/resource.k8s.io/v1/resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"),
    "/apis/resource.k8s.io/v1/resourceslices": ("resource.k8s.io/v1", "ResourceSlice"),
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


def record(thing, is_removed=False):
    """A change of an object, which gets its next version. With `changed` held."""
    thing["apiVersion"] = next(version for version, kind in PATHS.values() if kind == thing["kind"])
    thing["metadata"].setdefault("uid", "-".join(map(str, key(thing))))
    thing["metadata"]["resourceVersion"] = str(len(history) + 1)
    history.append(("DELETED" if is_removed else None, thing))
    changed.notify_all()


def is_selected(thing, selector):
    """Whether an object has the fields that a list is limited to."""
    for part in filter(None, selector.split(",")):
        path, value = part.split("=", 1)
        found = thing
        for word in path.split("."):
            found = found.get(word, {})
        if found != value:
            return False
    return True


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, thing, status=200):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(thing).encode())

    def refuse(self, status, reason):
        self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": f"{self.path}: {reason}", "code": status}, status)

    def find(self, path):
        """The kind that a path names, and the object, if it names one and that is there."""
        words = path.split("/")
        namespace = None
        if "namespaces" in words[:-2]:
            at = words.index("namespaces")
            namespace, words = words[at + 1], words[:at] + words[at + 2 :]
        version, kind = PATHS["/".join(words[:-1])]
        same = [thing for thing in present(kind) if key(thing) == (kind, namespace, words[-1])]
        return kind, same[0] if same else None

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def do_POST(self):
        _, kind = PATHS[urlparse(self.path).path]
        thing = {**self.body(), "kind": kind}
        with changed:
            if any(key(one) == key(thing) for one in present(kind)):
                return self.refuse(409, "AlreadyExists")
            record(thing)
        self.answer(thing, 201)

    def do_PUT(self):
        thing = self.body()
        with changed:
            kind, known = self.find(urlparse(self.path).path)
            if known is None:
                return self.refuse(404, "NotFound")
            if thing["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
                return self.refuse(409, "Conflict")
            record({**thing, "kind": kind})
        self.answer(thing)

    def do_DELETE(self):
        with changed:
            _, known = self.find(urlparse(self.path).path)
            if known is None:
                return self.refuse(404, "NotFound")
            record(dict(known), is_removed=True)
        self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def do_GET(self):
        url = urlparse(self.path)
        if url.path not in PATHS:
            try:
                known = self.find(url.path)[1]
            except KeyError:
                known = None
            return self.answer(known) if known else self.refuse(404, "NotFound")
        version, kind = PATHS[url.path]
        query = parse_qs(url.query)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        if "watch" in query:
            return self.watch(kind, int(query["resourceVersion"][0]))
        with changed:
            items, now = present(kind), len(history)
        items = [thing for thing in items if is_selected(thing, query.get("fieldSelector", [""])[0])]
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
    for line in sys.stdin:
        order = json.loads(line)
        with changed:
            if "list" in order:
                print(json.dumps(present(order["list"])), flush=True)
                continue
            record(order.get("set") or order["remove"], is_removed="remove" in order)
        print(flush=True)


if __name__ == "__main__":
    main()
