#!/usr/bin/env python3
"""Writes an OCI image archive from layers that are there and directories: ``archive.py OUT --name NAME ...``.

Rule: nothing but the standard library, and the same inputs give the same bytes (times are 0, owners root).
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

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    packed = io.BytesIO()
    zipped = gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in sorted(tree.rglob("*")):
            tar.add(path, arcname=str(path.relative_to(tree)), recursive=False, filter=plain)
    return Layer(packed.getvalue())


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
) -> None:
    """An archive that ``ctr images import``, ``podman load`` and ``docker load`` take, in one step.

    ``entrypoint``, unlike ``command``, stays before the arguments that a container is given.
    """
    run = {"Cmd": list(command), "Entrypoint": list(entrypoint), "User": user, "Labels": dict(labels or {})}
    platform = {"architecture": MACHINES.get(os.uname().machine, os.uname().machine), "os": "linux"}
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
    named = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry = {**_descriptor("manifest.v1+json", manifest), "platform": platform, "annotations": named}
    new = out.with_name(f".{out.name}.{os.getpid()}")
    with tarfile.open(new, "w") as tar:
        _put(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _put(
            tar, "index.json", _json({"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [entry]})
        )
        for blob in [*blobs, manifest]:
            _put(tar, "blobs/sha256/" + digest(blob).removeprefix("sha256:"), blob)
    new.rename(out)


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
    parser.add_argument("--name", required=True)
    parser.add_argument("--layer", type=Path, action="append", default=[], help="a .tar.gz; lower layers first")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="a directory that becomes a layer")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--user", default="")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=TEXT")
    parser.add_argument("--command", nargs=argparse.REMAINDER, default=[])
    parser.add_argument("--entrypoint", nargs=argparse.REMAINDER, default=[])
    arguments = parser.parse_args()
    layers = [Layer(path.read_bytes()) for path in arguments.layer] + [tree_layer(path) for path in arguments.tree]
    write_image(
        arguments.out,
        arguments.name,
        layers,
        env=arguments.env,
        command=arguments.command,
        entrypoint=arguments.entrypoint,
        user=arguments.user,
        labels={name: text for name, _, text in (label.partition("=") for label in arguments.label)},
    )


if __name__ == "__main__":
    main()
