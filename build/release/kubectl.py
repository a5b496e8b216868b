"""calicoctl for those who have a cluster and no node: kubectl's plugin as krew wants it, and a zip application.

Rule: both work with Kubernetes alone. What only etcd needs, gRPC above all, is left out: it is a third of the bundle.
The plugin runs on any Linux, because it is started by the bundle's own dynamic linker, with the bundle's C library;
krew runs nothing after unpacking, so there is no installer. The zip application has no compiled part, for other
systems.
"""

from __future__ import annotations

import gzip
import io
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from archive import pack_tree
from plugin_needs import find_needs, select_unneeded

ROOT = Path(__file__).resolve().parent.parent.parent
PROJECT = "cni_calico"
PLUGIN = "kubectl-calico"
# of etcd's client, and of C++, which only gRPC is written in
ETCD = ("grpc", "google", "dns", "libstdc++.so.6")
# pure Python, and all that a command on Kubernetes imports
LIBRARIES = ("yaml", "jsonpath", "jsonpatch.py", "jsonpointer.py", "rich")
_LAUNCHER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")/lib
in="$here/{contents}"
exec "$in/glibc/{linker}" --library-path "$in/glibc:$in" "$here/{plugin}" "$@"
"""
_MAIN = f"""import os
import sys

if sys.version_info < (3, 11):
    sys.exit("calicoctl: it needs Python 3.11 or newer, this is %d.%d" % sys.version_info[:2])
os.environ.setdefault("DATASTORE_TYPE", "kubernetes")
import yaml

# nothing is compiled here
yaml.CSafeLoader = yaml.SafeLoader
yaml.CSafeDumper = yaml.SafeDumper
from {PROJECT}.ctl.main import main

sys.exit(main())
"""
# what is compiled, and what only a type checker reads
_LEFT_OUT = ("__pycache__", "*.so", "*.pyi", "*.typed", "*.proto")


def list_sources() -> list[Path]:
    """What it begins with: commands are imported by names that the command line puts together."""
    return [ROOT / "build/launch/calicoctl.py", *sorted((ROOT / PROJECT / "ctl").rglob("*.py"))]


def stage_plugin(tree: Path, target: Path) -> None:
    """Write what the archive has. ``tree``: of a release's tarball."""
    (contents,) = (tree / "bin").glob(".calico-*")
    (linker,) = (contents / "glibc").glob("ld-*.so*")
    library = target / "lib"
    library.mkdir(parents=True)
    others = ("share", "install", "packs", *ETCD)
    unneeded = {contents / path for path in (*select_unneeded(contents, list_sources()), *others)}

    def leave_out(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(directory, name) in unneeded]

    shutil.copytree(contents, library / contents.name, symlinks=True, ignore=leave_out)
    shutil.copy(tree / "bin/calicoctl", library / PLUGIN)
    for page in ("LICENSE", "NOTICE"):
        shutil.copy(tree / page, target)
    launcher = target / PLUGIN
    launcher.write_text(_LAUNCHER.format(contents=contents.name, linker=linker.name, plugin=PLUGIN))
    launcher.chmod(0o755)


def pack_plugin(tree: Path, scratch: Path) -> bytes:
    """The archive ``kubectl-calico_V_linux_A.tar.gz``: krew reads no other compression."""
    stage_plugin(tree, scratch)
    return gzip.compress(pack_tree(scratch), 9, mtime=0)


def pack_application(documents: Path, epoch: int) -> bytes:
    """The zip application ``calicoctl-V.pyz``, of the sources and of the libraries that this Python has."""
    date = time.gmtime(max(epoch, 315532800))[:6]  # a zip file knows no earlier day
    packed = io.BytesIO(b"")
    packed.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in _application(documents):
            info = zipfile.ZipInfo(name, date)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def _application(documents: Path) -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN.encode()
    for page in ("LICENSE", "NOTICE"):
        yield page, (documents / page).read_bytes()
    needed, _ = find_needs(list_sources(), as_written=True)
    trees = [ROOT / PROJECT, *map(_installed, LIBRARIES)]
    for tree in trees:
        files = [tree] if tree.is_file() else sorted(path for path in tree.rglob("*") if path.is_file())
        for path in files:
            relative = path.relative_to(tree.parent)
            if tree.name == PROJECT and path.suffix == ".py" and _module(relative) not in needed:
                continue
            if not any(part.match(pattern) for part in (path, *path.parents) for pattern in _LEFT_OUT):
                yield str(relative), path.read_bytes()


def _module(path: Path) -> str:
    """The name by which it is imported."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _installed(name: str) -> Path:
    for place in sys.path:
        if (path := Path(place, name)).exists() and "site-packages" in path.parts:
            return path
    raise SystemExit(f"cannot make the zip application: there is no {name}; requirements.lock has it")
