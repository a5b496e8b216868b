"""Writes a release: ``release.py BUNDLE LOWER PLUGINS OUT ...`` (build/release.sh is the command to use).

Rule: the same bundle, lower layer, plugins and sources give the same bytes, wherever they lie; a file that exists in
OUT is replaced, and the list of sums has exactly what was made. BUILDINFO, which says with what, is written last.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from archive import join_images, pack_tree, tree_layer
from buildinfo import describe_build, read_packages, render_buildinfo
from components import read_bundle, read_layer
from debs import build_packages
from edition import Edition
from gomodules import read_modules
from installer import INSTALLER, render_installer
from kubectl import pack_application, pack_plugin
from notice import render_notice
from published import read_published, render_tree
from pyinstaller import source_date
from sbom import render_sbom
from verification_keys import write_keys

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALL = ROOT / "build" / "install-bundle.sh"
NAME = "cni-calico"
PAGES = ("README.md", "CHANGELOG.md", "LICENSE", "SECURITY.md", "ARCHITECTURE.md", "BENCHMARKS.md", "CONTRIBUTING.md")
DIRECTORIES = ("docs", "manifests", "install", "conflist")
CHART = "manifests/chart"
NOT_SHIPPED = ("__pycache__", "source", "*.py")


def stage(bundle: Path, plugins: Path, tree: Path, notice: str) -> None:
    """Everything of the tarball but the names of published.toml; the bundle is moved there."""
    tree.mkdir(parents=True)
    for name in PAGES:
        shutil.copy(ROOT / name, tree)
    for name in DIRECTORIES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns(*NOT_SHIPPED))
    shutil.copy(INSTALL, tree)
    bundle.rename(tree / "bin")
    shutil.copytree(plugins / "bin", tree / "plugins")
    (tree / "NOTICE").write_text(notice)
    shutil.copy(INSTALLER, tree)  # for --uninstall
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


def build_images(tree: Path, lower: Path, scratch: Path, out: Path, edition: Edition) -> None:
    """The agent's image and the controllers', which share their layers, in one archive."""
    labels = {
        "title": NAME,
        "description": "Calico's CNI plugin, IPAM, node agent, policy engine and controllers in Python",
        "version": edition.version,
        "revision": edition.build,
        "licenses": "Apache-2.0",
        "base.name": "debian:bookworm",
    }
    environment = {
        **os.environ,
        "ARCH": edition.architecture,
        "IMAGE": re.findall(r"(?m)^ *image: *(\S+)", (tree / "manifests" / "calico.yaml").read_text())[0],
        "LOWER": str(lower),
        "BUNDLE": str(tree / "bin"),
        "CNI_PLUGINS": str(tree / "plugins"),
        "KUBE_CONTROLLERS": str(scratch / "kube-controllers.tar"),
        "DOCUMENTS": str(tree / "NOTICE"),
        "LABELS": "\n".join(f"org.opencontainers.image.{name}={text}" for name, text in labels.items()),
    }
    node = scratch / "node.tar"
    build = ROOT / "build" / "image" / "build.sh"
    subprocess.run([build, node], check=True, env=environment, stdout=subprocess.DEVNULL)
    join_images(out, [node, scratch / "kube-controllers.tar"])


@dataclass(frozen=True)
class Inputs:
    """``lower``: the image's lower layer; ``plugins``: as build/image/plugins.sh makes them; ``commit``: of the
    sources; ``debian``: the date of the newest of Debian's lists, of which the build root's packages are.
    """

    bundle: Path
    lower: Path
    plugins: Path
    commit: str
    debian: str


def release(given: Inputs, out: Path, architecture: str, suffix: str) -> None:
    """``suffix``: of the version, for a trial."""
    epoch = int(source_date())
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=out) as made:
        scratch = Path(made)
        # a directory of a bundle may have older contents, too
        subprocess.run([INSTALL, "--plain", given.bundle, scratch / "bin"], check=True)
        (contents,) = (scratch / "bin").glob(".calico-*")
        version, _, build = contents.name.removeprefix(".calico-").rpartition("-")
        version += suffix
        edition = Edition(version, build, architecture, epoch)
        shipped, modules, image = read_bundle(contents), read_modules(given.plugins), read_layer(given.lower)
        name = f"{NAME}-{version}-linux-{architecture}"
        tree = scratch / "tarball" / name
        stage(scratch / "bin", given.plugins, tree, render_notice(f"{NAME} {version}+{build}", shipped, modules, image))
        published = read_published()
        render_tree(tree, published, version)
        write_keys(tree, published.keys)
        files = [out / f"{name}.tar.xz", out / f"{NAME}-{version}-images-{architecture}.tar"]
        files += [out / f"{NAME}-{version}-{architecture}.cdx.json"]
        files += [out / f"{NAME}-chart-{version}.tgz"]
        files[0].write_bytes(lzma.compress(pack_tree(tree.parent), preset=9))
        # helm wants the chart's name as the directory
        shutil.copytree(tree / CHART, scratch / "chart" / NAME)
        files[3].write_bytes(tree_layer(scratch / "chart").data)
        files += [out / f"kubectl-calico_{version}_linux_{architecture}.tar.gz", out / f"calicoctl-{version}.pyz"]
        files[4].write_bytes(pack_plugin(tree, scratch / "kubectl"))
        files[5].write_bytes(pack_application(tree, epoch))
        files.append(out / INSTALLER.name)
        files[6].write_text(render_installer(INSTALLER.read_text(), version))
        files[6].chmod(0o755)
        build_images(tree, given.lower, scratch, files[1], edition)
        files[2].write_text(render_sbom(NAME, edition, {"bundle": shipped, "plugins": modules, "image": image}))
        files += build_packages(tree, out, scratch / "debs", edition)
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (out / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
    fields = describe_build(edition, given.commit, given.debian)
    (out / f"BUILDINFO-{architecture}").write_text(render_buildinfo(fields, read_packages(), sums))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a release.")
    for name in ("bundle", "lower", "plugins", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--arch", required=True, help="Debian's name of the processor: amd64, arm64")
    parser.add_argument("--commit", required=True, help="what the sources are")
    parser.add_argument("--debian", required=True, help="the date of Debian's lists")
    parser.add_argument("--suffix", default="", help="of the version")
    words = parser.parse_args()
    release(
        Inputs(words.bundle, words.lower, words.plugins, words.commit, words.debian),
        words.out,
        words.arch,
        words.suffix,
    )


if __name__ == "__main__":
    main()
