#!/usr/bin/env python3
"""The lower layer of the image: of a Debian root what the image runs, and nothing else: ``lower.py ROOT OUT.tar.gz``.

Rule: programs are named here, the libraries that they need are found in the files themselves. Every file belongs to a
package; each of these packages is in dpkg's status, which scanners read, and in /usr/share/doc with its copyright file;
no other one is. The same root gives the same bytes.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import io
import os
import stat
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from elf import is_elf, read_elf

# package -> patterns of what is taken of it; "*" matches slashes, too
PROGRAMS = ("usr/bin/*", "usr/sbin/*")
TAKEN: dict[str, tuple[str, ...]] = {
    "bird2": ("usr/sbin/*",),
    "nftables": ("usr/sbin/*",),
    "iptables": ("usr/sbin/*", "usr/bin/*", "usr/lib/*/xtables/*", "etc/*"),
    "ipset": ("usr/sbin/*",),
    "iproute2": (
        "usr/*bin/ip",
        "usr/*bin/ss",
        "usr/*bin/bridge",
        "usr/*bin/tc",
        "etc/*",
        "usr/lib/*/tc/*",
        "usr/lib/tc/*",
    ),
    "kmod": (*PROGRAMS, "etc/*"),
    # shells, and what scripts of the image, of its users and the installer of a bundle call
    "dash": PROGRAMS,
    "bash": (*PROGRAMS, "etc/*"),
    "coreutils": PROGRAMS,
    "findutils": PROGRAMS,
    "grep": PROGRAMS,
    "sed": PROGRAMS,
    "mawk": PROGRAMS,
    "diffutils": PROGRAMS,
    "tar": PROGRAMS,
    "gzip": PROGRAMS,
    "hostname": PROGRAMS,
    "util-linux": tuple(f"usr/bin/{name}" for name in ("flock", "lsns", "nsenter", "unshare", "setpriv")),
    "mount": tuple(f"usr/bin/{name}" for name in ("mount", "umount", "findmnt")),
    # the system itself; the executables of the bundle use the C library of the image
    "libc6": tuple(
        f"usr/lib/*/lib{name}.so.*" for name in ("c", "m", "dl", "pthread", "resolv", "rt", "util", "nss_*")
    ),
    "libc-bin": ("etc/*", "usr/bin/getent", "usr/bin/ldd"),
    "base-files": ("etc/*", "usr/lib/os-release", "usr/share/common-licenses/*"),
    "ncurses-base": ("usr/lib/terminfo/*",),  # for shells and birdc at a terminal
}
LEFT_OUT = (
    "usr/lib/*/gconv/*", "usr/lib/*/audit/*", "etc/cron*", "etc/init.d/*", "etc/update-motd.d/*", "etc/motd",
    "usr/lib/*/tc/q_atm.so",  # loaded for ATM alone, and needs a library that is only recommended
)  # fmt: skip
# written by installation scripts, so in no package's list; with links of alternatives to what was taken
WRITTEN = ("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/nsswitch.conf", "etc/debian_version")
DIRECTORIES = (
    "boot", "dev", "etc", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr/local/bin",
    "usr/local/sbin", "var/cache", "var/lib/dpkg", "var/log", "var/spool", "var/tmp",
)  # fmt: skip
LINKS = {"var/run": "/run", "var/lock": "/run/lock"}
STATUS = "var/lib/dpkg/status"
DOCUMENTS = "usr/share/doc"


class Incomplete(SystemExit):
    """A layer that would lack what it needs, or what its licences ask for."""


class Root:
    """The files of a Debian root by their paths without a leading slash, as they lie there (``/bin`` is a link)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.status = self._read_status()
        self.owners: dict[str, str] = {}
        for listing in sorted((root / "var/lib/dpkg/info").glob("*.list")):
            package = listing.stem.partition(":")[0]
            for line in listing.read_text().splitlines():
                path = self.canonical(line.strip("/"))
                if package in self.status and path and not (self.is_directory(path)):
                    self.owners[path] = package
        if not self.owners:
            raise Incomplete(f"cannot make a layer of {root}: no Debian root, or one without packages")

    def _read_status(self) -> dict[str, str]:
        text = (self.root / STATUS).read_text() if (self.root / STATUS).exists() else ""
        paragraphs = {p.partition("\n")[0].removeprefix("Package: "): p for p in text.split("\n\n") if p.strip()}
        return {name: p for name, p in paragraphs.items() if "\nStatus: install ok installed\n" in p}

    def canonical(self, path: str) -> str:
        """The path with links among its directories followed: ``bin/sh`` -> ``usr/bin/sh``."""
        done = PurePosixPath()
        parts = list(PurePosixPath(path).parts)
        while len(parts) > 1:
            done /= parts.pop(0)
            here = self.root / done
            if here.is_symlink():
                target = PurePosixPath(here.readlink())
                parts = [*(target.parts[1:] if target.is_absolute() else target.parts), *parts]
                done = PurePosixPath() if target.is_absolute() else done.parent
                if ".." in parts:
                    raise Incomplete(f"cannot follow {here}: it leads upwards")
        return str(done / parts[0]) if parts else ""

    def is_directory(self, path: str) -> bool:
        there = self.root / path
        return there.is_dir() and not there.is_symlink()

    def exists(self, path: str) -> bool:
        return bool(path) and ((self.root / path).is_symlink() or (self.root / path).exists())

    def chain(self, path: str) -> Iterator[str]:
        """A file and, if it is a link, what it leads to in the end."""
        for _ in range(10):
            path = self.canonical(path)
            if not self.exists(path):
                return
            yield path
            here = self.root / path
            if not here.is_symlink():
                return
            target = PurePosixPath(here.readlink())
            path = str(target).lstrip("/") if target.is_absolute() else _joined(PurePosixPath(path).parent, target)


def _joined(directory: PurePosixPath, target: PurePosixPath) -> str:
    parts: list[str] = list(directory.parts)
    for part in target.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def select_files(root: Root) -> set[str]:
    """The files of the layer; raises Incomplete if a package or a library is missing."""
    if missing := sorted(TAKEN.keys() - root.status.keys()):
        raise Incomplete(f"cannot make the image's lower layer: {', '.join(missing)} not installed in {root.root}")
    wanted = [path for path, owner in root.owners.items() if _is_taken(path, owner)]
    wanted += [path for path in WRITTEN if root.exists(path)]
    chosen: set[str] = set()
    while wanted:
        for path in root.chain(wanted.pop()):
            if path not in chosen and not root.is_directory(path):
                chosen.add(path)
                wanted += _libraries(root, path)
    for entry in sorted((root.root / "etc/alternatives").iterdir()):
        link = f"etc/alternatives/{entry.name}"
        *_, end = ["", *root.chain(link)]
        if end in chosen:
            chosen.add(link)
    return chosen | _alternatives(root, chosen)


def _is_taken(path: str, owner: str) -> bool:
    patterns = TAKEN.get(owner, ())
    return any(fnmatch.fnmatch(path, p) for p in patterns) and not any(fnmatch.fnmatch(path, p) for p in LEFT_OUT)


def _alternatives(root: Root, chosen: set[str]) -> set[str]:
    """The names under which alternatives are called (``usr/sbin/iptables``), which are in no package's list."""
    found = set()
    for directory in ("usr/bin", "usr/sbin"):
        for path in (root.root / directory).iterdir():
            if path.is_symlink() and str(path.readlink()).lstrip("/") in chosen:
                found.add(f"{directory}/{path.name}")
    return found


def _libraries(root: Root, path: str) -> Iterator[str]:
    """What a program or library needs, from where the dynamic linker looks."""
    file = root.root / path
    if file.is_symlink() or not is_elf(file):
        return
    elf = read_elf(file)
    if elf.interpreter is not None:
        yield elf.interpreter.text.lstrip("/")
    for name in elf.needed:
        places = [str(PurePosixPath(path).parent), *_library_directories(root)]
        found = next((f"{place}/{name}" for place in places if root.exists(f"{place}/{name}")), None)
        if found is None:
            raise Incomplete(f"cannot make the image's lower layer: {path} needs {name}, which is not in {root.root}")
        yield found


def _library_directories(root: Root) -> list[str]:
    return [f"usr/lib/{path.name}" for path in sorted((root.root / "usr/lib").glob("*-linux-gnu"))] + ["usr/lib"]


def packages_of(root: Root, files: set[str]) -> list[str]:
    """The packages of these files, sorted; raises Incomplete for a file that belongs to none."""
    generated = {path for path in files if root.owners.get(path) is None}
    links = {path for path in generated if (root.root / path).is_symlink()}
    if unowned := sorted(generated - links - set(WRITTEN)):
        raise Incomplete(f"cannot make the image's lower layer: no package has {', '.join(unowned)}")
    return sorted({root.owners[path] for path in files - generated})


def render_layer(root: Root) -> bytes:
    """The archive, compressed."""
    files = select_files(root)
    packages = packages_of(root, files)
    texts = {f"{DOCUMENTS}/{package}/copyright": _copyright(root, package) for package in packages}
    texts[STATUS] = "".join(root.status[package].strip("\n") + "\n\n" for package in packages).encode()
    made = (*files, *texts, *DIRECTORIES)
    directories = {str(parent) for path in made for parent in PurePosixPath(path).parents} - {"."}
    top = {path.name for path in root.root.iterdir() if path.is_symlink()}  # bin, lib, sbin ...
    packed = io.BytesIO()
    zipped = gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted({*files, *texts, *directories, *DIRECTORIES, *LINKS, *top}):
            _add(tar, root.root / path, path, texts)
    return packed.getvalue()


def _add(tar: tarfile.TarFile, file: Path, path: str, texts: dict[str, bytes]) -> None:
    info = tarfile.TarInfo(path)
    data = b""
    if path in texts:
        data, info.mode = texts[path], 0o644
    elif path in LINKS:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, LINKS[path], 0o777
    elif file.is_symlink() and not path.startswith(DOCUMENTS):  # where it may be one to another package's directory
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(file.readlink()), 0o777
    else:
        status = file.stat() if file.exists() else None
        info.mode = stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID) if status else 0o755
        info.uid, info.gid = (status.st_uid, status.st_gid) if status else (0, 0)
        if file.is_dir() or status is None:
            info.type = tarfile.DIRTYPE
        else:
            data = _content(file, path)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _content(file: Path, path: str) -> bytes:
    """The bytes; without the day on which a password was changed last, which is that of the installation."""
    data = file.read_bytes()
    if path != "etc/shadow":
        return data
    rows = (line.split(":") for line in data.decode().splitlines())
    return "".join(":".join([*row[:2], "18262", *row[3:]]) + "\n" for row in rows).encode()


def _copyright(root: Root, package: str) -> bytes:
    *_, end = ["", *root.chain(f"{DOCUMENTS}/{package}/copyright")]
    if not end or not (root.root / end).is_file():
        raise Incomplete(f"cannot make the image's lower layer: {package} comes without its copyright file")
    return (root.root / end).read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the lower layer of the image out of a Debian root.")
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    layer = render_layer(Root(arguments.root))
    new = arguments.out.with_name(f".{arguments.out.name}.{os.getpid()}")  # several may make it at once
    new.write_bytes(layer)
    new.rename(arguments.out)


if __name__ == "__main__":
    main()
