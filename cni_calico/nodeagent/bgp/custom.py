"""Users' files beside BIRD's configuration: fragments in custom/, and templates in templates/, which cannot be used.

Rule: only regular files of a limited size are read, and one that cannot be read is reported; it never stops BGP from
working.
"""

from __future__ import annotations

import os
import stat

from cni_calico.nodeagent.bgp.config.findings import ERROR, WARNING, BgpProblem
from cni_calico.nodeagent.bgp.config.fragments import Fragments, is_fragment

CUSTOM, TEMPLATES = "custom", "templates"
MOST_BYTES = 1 << 18
TEMPLATE = ".template"


def read_custom(confd_dir: str) -> tuple[Fragments, tuple[BgpProblem, ...]]:
    """The fragments, and the problems of the files; ``confd_dir`` is /etc/calico/confd."""
    texts: dict[str, str] = {}
    problems = []
    for name in _names(f"{confd_dir}/{CUSTOM}"):
        if not is_fragment(name):
            if name.endswith(".conf"):
                problems.append(BgpProblem(f"{CUSTOM}/{name}", "is not a fragment's name; it is not used", WARNING))
            continue
        try:
            texts[name] = _read(f"{confd_dir}/{CUSTOM}/{name}")
        except (OSError, ValueError) as e:
            problems.append(BgpProblem(f"{CUSTOM}/{name}", f"cannot be read: {e}", ERROR))
    for name in _names(f"{confd_dir}/{TEMPLATES}"):
        if name.endswith(TEMPLATE):
            text = "is a template for BIRD 1.6 and is NOT USED: write fragments in custom/ (docs/bgp.md)"
            problems.append(BgpProblem(f"{TEMPLATES}/{name}", text, ERROR))
    return Fragments(texts), tuple(problems)


def read_marks(confd_dir: str) -> tuple[tuple[str, int, int, int], ...]:
    """Path, inode, size and time of every file that ``read_custom`` looks at; they differ once a file has changed."""
    marks = []
    directories = (f"{confd_dir}/{CUSTOM}", f"{confd_dir}/{TEMPLATES}")
    for path in (f"{directory}/{name}" for directory in directories for name in _names(directory)):
        try:
            found = os.stat(path)
        except OSError:
            marks.append((path, 0, 0, 0))
        else:
            marks.append((path, found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(marks)


def _names(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError:
        return []


def _read(path: str) -> str:
    """Raises OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a regular file")
        data = os.read(fd, MOST_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MOST_BYTES or b"\0" in data:
        raise ValueError(f"it is larger than {MOST_BYTES >> 10} KiB, or not text")
    return data.decode()
