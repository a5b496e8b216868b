"""BIRD's configuration in a rehearsal: the one that would be written beside the one that is read now.

Rule: BIRD is not asked, and its files are only read. What upstream's agent wrote is compared by sessions, because no
line of it is ours. Passwords are never shown: a difference is named by its file and its sessions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cni_calico.kernel.files import Files
from cni_calico.nodeagent.bgp.bird.adoption import MARK
from cni_calico.nodeagent.bgp.config.render import MAIN

_SESSION = re.compile(r"^\s*neighbor\s+(\S+?)(?:%\S+)?\s+.*?as\s+(\d+)", re.MULTILINE)
_PROC = Path("/proc")
_NAMES = frozenset(("bird", "bird6"))


def describe_bird(wanted: Mapping[str, str], directory: str, files: Files, proc: Path = _PROC) -> Iterator[str]:
    """``wanted``: files by name, none: there is no BGP. ``directory``: where they would be."""
    there = {name: text for name in wanted or (MAIN,) if (text := _read(files, f"{directory}/{name}")) is not None}
    if not wanted:
        if MARK in there.get(MAIN, ""):
            yield f"stop BIRD, and remove its configuration in {directory}: there is no BGP on this node"
        return
    if MARK in there.get(MAIN, ""):
        for name in wanted:
            if there.get(name) != wanted[name]:
                yield f"{'change' if name in there else 'write'} {directory}/{name}"
        before = sessions(there.values())
    else:
        yield f"write BIRD's configuration in {directory}"
        others = [there[MAIN]] if MAIN in there else running_configurations(proc)
        before = sessions(others)
    after = sessions(wanted.values())
    yield from (f"end the session with {address} (AS {number})" for address, number in sorted(before - after))
    yield from (f"begin a session with {address} (AS {number})" for address, number in sorted(after - before))


def sessions(texts: Iterable[str]) -> set[tuple[str, str]]:
    """(address, AS) of the neighbours in configurations."""
    return {(address.rstrip(";"), number) for text in texts for address, number in _SESSION.findall(text)}


def running_configurations(proc: Path = _PROC) -> list[str]:
    """What BIRDs were started with that run in this network namespace, also in containers. What cannot be read is not
    there.
    """
    found, here = [], _network_of(proc / "self")
    for process in sorted(proc.glob("[0-9]*")):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if os.path.basename(os.fsdecode(words[0])) not in _NAMES or b"-c" not in words:
                continue
            if here and _network_of(process) != here:
                continue  # of another host's network, such as a pod's
            path = os.fsdecode(words[words.index(b"-c") + 1])
            found.append((process / "root" / path.lstrip("/")).read_text("utf-8", "replace"))
        except (OSError, IndexError):
            continue
    return found


def _network_of(process: Path) -> str:
    """The network namespace; "" if it cannot be read."""
    try:
        return os.readlink(process / "ns" / "net")
    except OSError:
        return ""


def _read(files: Files, path: str) -> str | None:
    try:
        return files.read_bytes(path).decode("utf-8", "surrogateescape")
    except OSError:
        return None
