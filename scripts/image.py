#!/usr/bin/env python3
"""Makes an archive of a container image with one layer, for `docker load` and `podman load`: the same for the same files.

image.py FOLDER NAME VERSION ARCHITECTURE SECONDS OUTPUT

FOLDER is the image's root; SECONDS since 1970 are the time of all that is in it. The archive is an OCI image layout (image-spec 1.1)
with Docker's own list of contents (`manifest.json`) beside it, which engines before 25 read.
"""
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import time


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def add(archive, name, data, seconds):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o644, seconds
    archive.addfile(info, io.BytesIO(data))


def layer_of(folder, seconds):
    """All files of the folder, in order, as root's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for base, folders, files in os.walk(folder):
            folders.sort()
            for name in sorted(folders + files):
                path = os.path.join(base, name)
                info = archive.gettarinfo(path, os.path.relpath(path, folder))
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                info.mtime = seconds
                # What is linked twice is written twice.
                if info.isreg() or info.islnk():
                    info.type = tarfile.REGTYPE
                    info.size = os.path.getsize(path)
                    with open(path, "rb") as file:
                        archive.addfile(info, file)
                else:
                    archive.addfile(info)
    return out.getvalue()


def main(folder, name, version, architecture, seconds, output):
    seconds = int(seconds)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    plain = layer_of(folder, seconds)
    layer = gzip.compress(plain, compresslevel=6, mtime=0)
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {
            "Entrypoint": ["/usr/bin/rdmesh"],
            "Cmd": ["router"],
            "Env": ["PATH=/usr/bin:/bin"],
            "Labels": {
                "org.opencontainers.image.title": name,
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(plain)}"]},
        "history": [{"created": created, "created_by": "./dev image"}],
    }
    blobs = {}

    def keep(data, media):
        blobs[sha256(data)] = data
        return {"mediaType": media, "digest": f"sha256:{sha256(data)}", "size": len(data)}

    def as_json(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    config_entry = keep(as_json(config), "application/vnd.oci.image.config.v1+json")
    layer_entry = keep(layer, "application/vnd.oci.image.layer.v1.tar+gzip")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_entry,
        "layers": [layer_entry],
    }
    entry = keep(as_json(manifest), manifest["mediaType"])
    entry["annotations"] = {
        "io.containerd.image.name": f"docker.io/library/{name}:{version}",
        "org.opencontainers.image.ref.name": version,
    }
    path = lambda one: "blobs/sha256/" + one["digest"].removeprefix("sha256:")
    docker = [{"Config": path(config_entry), "RepoTags": [f"{name}:{version}"], "Layers": [path(layer_entry)]}]
    with tarfile.open(output, "w", format=tarfile.PAX_FORMAT) as archive:
        for digest in sorted(blobs):
            add(archive, f"blobs/sha256/{digest}", blobs[digest], seconds)
        add(archive, "index.json", as_json({"schemaVersion": 2, "manifests": [entry]}), seconds)
        add(archive, "manifest.json", as_json(docker), seconds)
        add(archive, "oci-layout", as_json({"imageLayoutVersion": "1.0.0"}), seconds)


main(*sys.argv[1:])
