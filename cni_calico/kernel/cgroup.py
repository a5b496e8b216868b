"""How much memory this process may use, and how much is used: by its control groups, versions 1 and 2.

Rule: page cache does not count as used, because the kernel takes it back when it needs to. A limit that cannot be read
is none: nobody is denied anything because of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

ROOT, MEMBERSHIP = "/sys/fs/cgroup", "/proc/self/cgroup"
_UNLIMITED = 1 << 60  # version 1 writes a number for no limit


@dataclass(frozen=True, slots=True)
class LimitedGroup:
    """A control group with a limit. ``used``: the name of the file that says how much is used; ``cached``: the names in
    memory.stat of what is page cache.
    """

    path: str
    limit_bytes: int
    used: str
    cached: tuple[str, ...]

    def read_used_bytes(self) -> int:
        """0 if the kernel does not say."""
        try:
            used = int(_read(f"{self.path}/{self.used}"))
            cached = sum(_statistics(self.path).get(name, 0) for name in self.cached)
        except (OSError, ValueError):
            return 0
        return max(0, used - cached)


def read_limited_groups(root: str = ROOT, membership: str = MEMBERSHIP) -> tuple[LimitedGroup, ...]:
    """The groups of this process that have a limit, as far as they can be seen; in a container usually one."""
    try:
        places = [line.split(":", 2) for line in _read(membership).splitlines()]
    except OSError:
        return ()
    first = [place for _, controllers, place in places if "memory" in controllers.split(",")]
    second = [place for number, controllers, place in places if (number, controllers) == ("0", "")]
    if first:
        limit, used, cached = (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ("total_inactive_file", "total_active_file"),
        )
        top, place = f"{root}/memory", first[0]
    elif second:
        limit, used, cached = "memory.max", "memory.current", ("inactive_file", "active_file")
        top, place = root, second[0]
    else:
        return ()
    found = ((path, _limit(f"{path}/{limit}")) for path in _groups(top, place))
    return tuple(LimitedGroup(path, value, used, cached) for path, value in found if value is not None)


def _groups(top: str, place: str) -> Iterator[str]:
    """The group itself and those above it. In a container the group is often mounted as the top."""
    names = [name for name in place.split("/") if name not in ("", ".")]
    while names:
        path = "/".join((top, *names))
        if os.path.isdir(path):  # not one that may not be looked into, either
            yield path
        names.pop()
    yield top


def _limit(file: str) -> int | None:
    try:
        value = int(_read(file))
    except (OSError, ValueError):  # also "max"
        return None
    return value if 0 < value < _UNLIMITED else None


def _statistics(path: str) -> dict[str, int]:
    lines = (line.split() for line in _read(f"{path}/memory.stat").splitlines())
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}


def _read(file: str) -> str:
    with open(file, errors="surrogateescape") as stream:
        return stream.read()
