"""What a bundle and an image consist of: every library and Debian package, with version, licence and licence texts.

Rule: every file has an owner. A file of the bundle that belongs to no package known here stops the release, so that
nothing is shipped without its licence.
"""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from functools import cache
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from bootloader import GLIBC
from elf import is_elf

HERE = Path(__file__).resolve().parent
PROJECT = "cni_calico"
MULTIARCH = sysconfig.get_config_var("MULTIARCH")  # Debian's name of the processor in directories: x86_64-linux-gnu
PYTHON_PACKAGES = ("libpython3.11-minimal", "libpython3.11-stdlib")  # the standard library
LISTS = (
    "manifest",
    "executables",
    "placeholders",
    "share",
    "install",
    "packs",
    "unneeded",
)  # written by the build itself
# (name, SPDX, whose package it is compiled into); texts in licences/, that of Apache-2.0 stands with gRPC
EMBEDDED = (
    ("abseil-cpp", "Apache-2.0", "grpcio"),
    ("boringssl", "Apache-2.0 AND OpenSSL AND ISC AND MIT", "grpcio"),
    ("c-ares", "MIT", "grpcio"),
    ("re2", "BSD-3-Clause", "grpcio"),
    ("utf8_range", "MIT", "protobuf"),
    ("xxhash", "BSD-2-Clause", "grpcio"),
)
_DOC = "usr/share/doc"
_COMMON_DIRECTORY = "usr/share/common-licenses"
_COMMON = re.compile(rf"/{_COMMON_DIRECTORY}/([A-Za-z][A-Za-z0-9.+-]*[A-Za-z0-9])")


class Unowned(SystemExit):
    """A file that is shipped and belongs to nothing."""


@dataclass(frozen=True, order=True)
class Component:
    """``kind`` pypi, deb, golang or generic. ``texts``: (name of the file, its text). ``source``: Debian's source
    package.
    """

    kind: str
    name: str
    version: str
    licence: str = ""
    texts: tuple[tuple[str, str], ...] = ()
    source: str = ""
    inside: str = ""


# -- the bundle -------------------------------------------------------------------------------------------------------


def read_bundle(contents: Path) -> list[Component]:
    """The components of a contents directory, sorted. Raises Unowned."""
    found: set[Component] = {_python(distribution("pyinstaller"))}  # its boot loader begins every executable
    owners = _owners()
    for path in sorted(contents.rglob("*")):
        relative = path.relative_to(contents)
        if path.is_file() and not path.is_symlink() and relative.parts[0] not in (PROJECT, *LISTS):
            found.update(_owner(path, relative, owners))
    names = {component.name for component in found}
    for name, licence, inside in EMBEDDED:
        if inside in names:
            text = HERE / "licences" / f"{name}.txt"
            texts = ((text.name, text.read_text()),) if text.exists() else ()
            version = next(component.version for component in found if component.name == inside)
            found.add(Component("generic", name, f"as in {inside} {version}", licence, texts, inside=inside))
    return sorted(found)


def _owner(path: Path, name: Path, owners: dict[str, Distribution]) -> Iterable[Component]:
    known = owners.get(str(name)) or owners.get(str(name.with_suffix(".py"))) or owners.get(name.parts[0])
    if known is not None:
        return [_python(known)]
    top = name.parts[0].partition(".")[0]
    if top in sys.stdlib_module_names or name.parts[0] == "python3.11" or top == f"_sysconfigdata__{MULTIARCH}":
        return [_debian(package) for package in PYTHON_PACKAGES]
    if name.parts[0] == GLIBC or is_elf(path):
        return [_debian(_package_of(path.name))]
    raise Unowned(
        f"cannot release: nobody owns {name} of the bundle; build/release/components.py has to learn whose it is"
    )


@cache
def _owners() -> dict[str, Distribution]:
    """File of an installed distribution -> that distribution; also the directories of its metadata and libraries."""
    found: dict[str, Distribution] = {}
    for each in distributions(path=[p for p in sys.path if p.endswith("site-packages")]):
        for file in each.files or ():
            found[str(file)] = each
            if file.parts[0].endswith((".dist-info", ".libs")):
                found[file.parts[0]] = each
    return found


@cache
def _python(found: Distribution) -> Component:
    name, version = found.metadata["Name"], found.version
    files = [file for file in found.files or () if _is_licence(file.parts)]
    texts = tuple((file.name, Path(str(file.locate())).read_text(errors="replace")) for file in sorted(files))
    if not texts:
        raise Unowned(f"cannot release: {name} {version} comes without a licence text")
    metadata = Parser().parsestr(found.read_text("METADATA") or "")
    licence = metadata["License-Expression"] or metadata["License"] or ""
    return Component("pypi", name.lower(), version, " ".join(licence.split())[:80], texts)


def _is_licence(parts: tuple[str, ...]) -> bool:
    wanted = re.match(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", parts[-1], re.IGNORECASE)
    return parts[0].endswith(".dist-info") and wanted is not None


# -- Debian packages of this machine ----------------------------------------------------------------------------------


@cache
def _package_of(library: str) -> str:
    """The package that has the library of that name, which the linker would find."""
    for directory in (f"/usr/lib/{MULTIARCH}", f"/lib/{MULTIARCH}", "/usr/lib", "/lib", "/lib64"):
        path = Path(directory, library)
        if path.exists():
            for candidate in (path.resolve(), path):
                for spelled in (str(candidate), str(candidate).removeprefix("/usr")):
                    done = subprocess.run(["dpkg-query", "-S", spelled], capture_output=True, text=True)
                    if done.returncode == 0:
                        return done.stdout.partition(":")[0]
    raise Unowned(f"cannot release: no Debian package has {library}")


@cache
def _debian(package: str) -> Component:
    format_ = "${binary:Package}\\t${Version}\\t${source:Package} ${source:Version}\\n"
    shown = subprocess.run(["dpkg-query", "-W", "-f", format_, package], capture_output=True, text=True, check=True)
    _, version, source = shown.stdout.splitlines()[0].split("\t")
    copyright_ = Path("/", _DOC, package, "copyright")
    texts = [("copyright", copyright_.read_text(errors="replace"))]
    for name in sorted(set(_COMMON.findall(texts[0][1]))):
        path = Path("/", _COMMON_DIRECTORY, name)
        if path.exists():
            texts.append((name, path.read_text(errors="replace")))
    return Component("deb", package, version, "", tuple(texts), source)


# -- Debian packages of an image --------------------------------------------------------------------------------------


class _Tree:
    """The files of a tar archive by their paths, links followed."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._members = {member.name.removeprefix("./"): member for member in tar.getmembers()}

    def text(self, path: str) -> str | None:
        member = self._find(path.split("/"))
        file = self._tar.extractfile(member) if member is not None and member.isfile() else None
        return file.read().decode(errors="replace") if file is not None else None

    def _find(self, parts: list[str], jumps: int = 8) -> tarfile.TarInfo | None:
        for count in range(1, len(parts) + 1):
            member = self._members.get("/".join(parts[:count]))
            if member is not None and member.issym() and jumps:
                target = [] if member.linkname.startswith("/") else parts[: count - 1]
                for part in filter(None, member.linkname.split("/")):
                    target = target[:-1] if part == ".." else [*target, part]
                return self._find([*target, *parts[count:]], jumps - 1)
        return self._members.get("/".join(parts))


def read_layer(archive: Path) -> list[Component]:
    """The Debian packages of a layer, sorted. Raises Unowned for one whose copyright file is missing."""
    # in memory: seeking in a compressed archive would unpack it again for every file
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive.read_bytes()))) as tar:
        tree = _Tree(tar)
        status = tree.text("var/lib/dpkg/status")
        if status is None:
            raise Unowned(f"cannot release: {archive} has no list of Debian packages")
        packages = [Parser().parsestr(paragraph) for paragraph in status.split("\n\n") if paragraph.strip()]
        return sorted(_packaged(fields, tree) for fields in packages if fields["Status"] == "install ok installed")


def _packaged(fields: Message, tree: _Tree) -> Component:
    name, version = fields["Package"], fields["Version"]
    copyright_ = tree.text(f"{_DOC}/{name}/copyright")
    if copyright_ is None:
        raise Unowned(f"cannot release: the image has {name}, but not its copyright file")
    common = {one: tree.text(f"{_COMMON_DIRECTORY}/{one}") for one in sorted(set(_COMMON.findall(copyright_)))}
    texts = [("copyright", copyright_), *((one, text) for one, text in common.items() if text is not None)]
    source, _, source_version = (fields["Source"] or name).partition(" ")
    return Component("deb", name, version, "", tuple(texts), f"{source} {source_version.strip('()') or version}")
