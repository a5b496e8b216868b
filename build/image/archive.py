#!/usr/bin/env python3
"""Writes an OCI image archive from layers that are there and directories: ``archive.py OUT --name NAME ...``; or puts
the images of several archives into one: ``archive.py OUT --join ARCHIVE...``.

Rule: nothing but the standard library, and the same inputs give the same bytes (times are 0, owners root). Beside the
OCI layout an archive has Docker's list (``manifest.json``): without it podman takes no archive of two images, and
docker none before 25.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CREATED = "1970-01-01T00:00:00Z"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image"
_CONTAINERD_NAME = "io.containerd.image.name"
_REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Layer:
    """``data``: a tar archive, compressed with gzip."""

    data: bytes = field(repr=False)

    @property
    def uncompressed_digest(self) -> str:
        return digest(gzip.decompress(self.data))


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tree_layer(tree: Path) -> Layer:
    """All below a directory, as root's."""
    return Layer(gzip.compress(pack_tree(tree), compresslevel=6, mtime=0))


def pack_tree(tree: Path) -> bytes:
    """The tar archive of all below a directory, as root's, without a time."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(tree.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(tree)), recursive=False, filter=plain)
    return packed.getvalue()


def write_image(
    out: Path,
    name: str,
    layers: Sequence[Layer],
    *,
    env: Sequence[str],
    command: Sequence[str] = (),
    entrypoint: Sequence[str] = (),
    user: str = "",
    labels: Mapping[str, str] | None = None,
    architecture: str = "",
) -> None:
    """An archive that ``ctr images import``, ``podman load`` and ``docker load`` take, in one step.

    ``entrypoint``, unlike ``command``, stays before the arguments that a container is given. ``architecture``: Debian's
    and Go's name of the processor, this machine's if it is empty.
    """
    run = {"Cmd": list(command), "Entrypoint": list(entrypoint), "User": user, "Labels": dict(labels or {})}
    platform = {"architecture": architecture or MACHINES.get(os.uname().machine, os.uname().machine), "os": "linux"}
    config = _json(
        {
            **platform,
            "created": CREATED,
            "config": {"Env": list(env), "WorkingDir": "/", **{name: said for name, said in run.items() if said}},
            "rootfs": {"type": "layers", "diff_ids": [layer.uncompressed_digest for layer in layers]},
        }
    )
    blobs = [config, *(layer.data for layer in layers)]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar+gzip", layer.data) for layer in layers],
            **({"annotations": dict(labels)} if labels else {}),
        }
    )
    named = {_CONTAINERD_NAME: name, _REFERENCE: name.rpartition(":")[2]}
    entry = {**_descriptor("manifest.v1+json", manifest), "platform": platform, "annotations": named}
    _write_archive(out, [entry], [*blobs, manifest])


def join_images(out: Path, archives: Sequence[Path]) -> None:
    """One archive of the images of several; what they share is in it once, and each is called by its whole name."""
    entries: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    for archive in archives:
        read = read_files(archive)
        for entry in json.loads(read["index.json"])["manifests"]:
            name = entry["annotations"][_CONTAINERD_NAME]
            entries.append({**entry, "annotations": {**entry["annotations"], _REFERENCE: name}})
        blobs |= {name: data for name, data in read.items() if name.startswith("blobs/")}
    names = [entry["annotations"][_REFERENCE] for entry in entries]
    if len(set(names)) != len(names):
        raise SystemExit(f"cannot join {out}: two archives have an image of the same name: {', '.join(names)}")
    _write_archive(out, entries, list(blobs.values()))


def read_files(archive: Path) -> dict[str, bytes]:
    """The files of a tar archive by their names."""
    with tarfile.open(archive) as tar:
        found = ((member.name, tar.extractfile(member)) for member in tar)
        return {name: file.read() for name, file in found if file is not None}


def _write_archive(out: Path, entries: Sequence[dict[str, Any]], blobs: Sequence[bytes]) -> None:
    """``entries``: descriptors of manifests, with the images' names as annotations."""
    by_path = {_path(digest(blob)): blob for blob in blobs}
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": entries}
    listed = []
    for entry in entries:
        manifest = json.loads(by_path[_path(entry["digest"])])
        layers = [_path(layer["digest"]) for layer in manifest["layers"]]
        tags = [entry["annotations"][_CONTAINERD_NAME]]
        listed.append({"Config": _path(manifest["config"]["digest"]), "RepoTags": tags, "Layers": layers})
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    write_tar(out, {**files, "manifest.json": _json(listed), **by_path})


def write_tar(out: Path, files: Mapping[str, bytes]) -> None:
    """A tar archive of the files in their order; it appears whole."""
    new = out.with_name(f".{out.name}.{os.getpid()}")
    with tarfile.open(new, "w") as tar:
        for path, data in files.items():
            _put(tar, path, data)
    new.rename(out)


def _path(named: str) -> str:
    return "blobs/" + named.replace(":", "/")


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"{_TYPE}.{kind}", "digest": digest(blob), "size": len(blob)}


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _put(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write an OCI image archive.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--join", type=Path, nargs="+", metavar="ARCHIVE", help="archives whose images OUT is to have")
    parser.add_argument("--name")
    parser.add_argument("--arch", default="", help="Debian's name of the processor (default: this machine's)")
    parser.add_argument("--layer", type=Path, action="append", default=[], help="a .tar.gz; lower layers first")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="a directory that becomes a layer")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--user", default="")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--command", nargs=argparse.REMAINDER, default=[])
    parser.add_argument("--entrypoint", nargs=argparse.REMAINDER, default=[])
    arguments = parser.parse_args()
    if arguments.join:
        join_images(arguments.out, arguments.join)
        return
    if not arguments.name:
        parser.error("the image needs a --name")
    layers = [Layer(path.read_bytes()) for path in arguments.layer] + [tree_layer(path) for path in arguments.tree]
    write_image(
        arguments.out,
        arguments.name,
        layers,
        env=arguments.env,
        command=arguments.command,
        entrypoint=arguments.entrypoint,
        user=arguments.user,
        architecture=arguments.arch,
        labels={name: text for name, _, text in (label.partition("=") for label in arguments.label)},
    )


if __name__ == "__main__":
    main()
