"""A control group with a limit of memory, of version 1 or 2, below that of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cni_calico.kernel.cgroup import read_limited_groups
from tests.deadlines import until

_ROOT = Path("/sys/fs/cgroup")


def _own() -> tuple[Path, str]:
    """This process's group, and the name of the file that limits it."""
    places = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, place in places:
        if "memory" in controllers.split(","):
            return _ROOT / "memory" / place.strip("/"), "memory.limit_in_bytes"
    return _ROOT, "memory.max"  # version 2 allows no processes beside groups, but at the root


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """What enters it (its number written to cgroup.procs) must have ended when the block ends."""
    above, limit = _own()
    if limit == "memory.max":
        (above / "cgroup.subtree_control").write_text("+memory")
    group = above / f"cct-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(limit_bytes))
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), "an empty group")
        group.rmdir()


def set_limit(group: Path, limit_bytes: int) -> None:
    (group / _own()[1]).write_text(str(limit_bytes))


def used_bytes(group: Path, pid: int) -> int:
    """What the processes of the group use, as one of them sees it."""
    groups = read_limited_groups(membership=f"/proc/{pid}/cgroup")
    return next(one.read_used_bytes() for one in groups if os.path.basename(one.path) == group.name)


def was_killed(group: Path) -> bool:
    """Whether the kernel has ended a process there for want of memory."""
    file = group / "memory.events"
    text = (file if file.exists() else group / "memory.oom_control").read_text()
    return dict(line.split() for line in text.splitlines()).get("oom_kill", "0") != "0"
