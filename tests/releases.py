"""Releases as build/release.sh makes them for one processor, but small: the names, lists and forms are the real ones,
the layers and packages are a few bytes. For the tests of what is done with a release afterwards.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build"))
sys.path.insert(0, str(ROOT / "build" / "image"))
sys.path.insert(0, str(ROOT / "build" / "release"))

from archive import join_images, tree_layer, write_image
from buildinfo import render_buildinfo
from join import MANIFESTS
from published import Published, render_text

VERSION = "0.1.0"
BUILD = "0123abcd"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ARCHITECTURES = ("amd64", "arm64")
LABEL = "org.opencontainers.image"


def make_release(
    out: Path, architecture: str, published: Published, *, version: str = VERSION, contents: str = ""
) -> Path:
    """``contents``: what the images' layers have besides."""
    out.mkdir(parents=True)
    scratch = out / "scratch"
    name = f"cni-calico-{version}"
    manifests = scratch / "tarball" / f"{name}-linux-{architecture}" / "manifests"
    for path in MANIFESTS:
        (manifests / path).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / "manifests" / path).read_text().replace(f":v{VERSION}", f":v{version}")
        (manifests / path).write_text(render_text(text, published, version))
    (out / f"{name}-linux-{architecture}.tar.xz").write_bytes(
        lzma.compress(gzip.decompress(tree_layer(scratch / "tarball").data))
    )
    shutil.copytree(ROOT / "manifests" / "chart", scratch / "chart" / "cni-calico")
    for path in ("values.yaml", "Chart.yaml"):
        file = scratch / "chart" / "cni-calico" / path
        file.write_text(render_text(file.read_text().replace(VERSION, version), published, version))
    (out / f"cni-calico-chart-{version}.tgz").write_bytes(tree_layer(scratch / "chart").data)
    make_images(out / f"{name}-images-{architecture}.tar", scratch, architecture, published, version, contents)
    make_package(out / f"cni-calico-bundle_{version}_{architecture}.deb", scratch, architecture, version)
    components = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": []}
    serial = f"urn:uuid:00000000-0000-4000-8000-00000000{ARCHITECTURES.index(architecture):04}"
    (out / f"{name}-{architecture}.cdx.json").write_text(json.dumps({**components, "serialNumber": serial}))
    (out / f"kubectl-calico_{version}_linux_{architecture}.tar.gz").write_text(architecture)
    (out / f"calicoctl-{version}.pyz").write_text(version)
    shutil.rmtree(scratch)
    write_lists(out, architecture, {"Version": version})
    return out


def make_package(out: Path, scratch: Path, architecture: str, version: str, said: str = "nothing in it") -> None:
    tree = scratch / "package"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = {"Package": "cni-calico-bundle", "Version": version, "Architecture": architecture}
    fields |= {"Maintainer": "nobody <nobody@localhost>", "Description": f"a package with {said}"}
    (tree / "DEBIAN" / "control").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(out)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1577836800"})


def make_images(out: Path, scratch: Path, architecture: str, published: Published, version: str, contents: str) -> None:
    archives = []
    for name, entrypoint in (("node", ()), ("kube-controllers", ("/usr/bin/wrapper",))):
        tree = scratch / "layer"
        tree.mkdir(exist_ok=True)
        (tree / "processor").write_text(f"{architecture} {version} {contents}")
        labels = {f"{LABEL}.version": version, f"{LABEL}.revision": BUILD}
        archives.append(scratch / f"{name}.tar")
        image = published.image(name, version)
        layers = [tree_layer(tree)]
        write_image(
            archives[-1], image, layers, env=[], entrypoint=entrypoint, labels=labels, architecture=architecture
        )
    join_images(out, archives)


def write_lists(out: Path, architecture: str, changed: Mapping[str, str]) -> None:
    """SHA256SUMS and BUILDINFO of what lies there."""
    for path in (*out.glob("BUILDINFO-*"), *out.glob("SHA256SUMS")):
        path.unlink()
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}
    (out / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    fields = {"Format": "1", "Source": "cni-calico", "Version": VERSION, "Build": BUILD, "Architecture": architecture}
    fields |= {"Commit": COMMIT, "Source-Date-Epoch": "1577836800", "Python": "3.11.2", "Compiler": "gcc 12.2.0"}
    fields |= {"Go": "1.26.8", "Locks": f"requirements.lock {'a' * 64}", "Debian": "2026-11-25T02:22:30Z", **changed}
    text = render_buildinfo(fields, [("base-files", "12.4+deb12u11"), ("libc6", "2.36-9+deb12u10")], sums)
    (out / f"BUILDINFO-{architecture}").write_text(text)


def make_releases(directory: Path, published: Published, version: str = VERSION, contents: str = "") -> Sequence[Path]:
    return [
        make_release(directory / each, each, published, version=version, contents=contents) for each in ARCHITECTURES
    ]
