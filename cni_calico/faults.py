"""Named fault points, so that a test can fail or kill the program at every write, netlink request and file step.

Rule: a module with an effect calls ``before(POINT)`` right before an effect and ``after(POINT)`` right after it; both
are no-ops (one global read) unless a test installed a hook or the environment variable CALICO_FAULT is set.

A failure in ``after`` means: the effect happened, but its answer was lost. These modules translate ``Injected`` (an
OSError) as they translate real errors.

CALICO_FAULT="POINT:WHEN:NTH:ACTION" (several with ","): POINT a name or "*", WHEN "before" or "after", NTH counted from
1 over the matching calls of this process, ACTION "fail" or "kill". CALICO_FAULT_TRACE=FILE appends "POINT:WHEN" lines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

Hook = Callable[[str, str], None]


class Injected(OSError):
    """The failure that a test requested; errno EIO."""

    def __init__(self, point: str, when: str) -> None:
        super().__init__(5, f"injected fault at {point} ({when})")
        self.point = point
        self.when = when


POINTS: set[str] = set()
_hook: Hook | None = None


def declare(name: str) -> str:
    """Register a fault point; modules do this on import, and tests walk ``POINTS`` to prove that all were reached."""
    POINTS.add(name)
    return name


def before(point: str) -> None:
    """Called right before the effect named ``point``."""
    if _hook is not None:
        _hook(point, "before")


def after(point: str) -> None:
    """Called right after the effect named ``point``."""
    if _hook is not None:
        _hook(point, "after")


def install(hook: Hook | None) -> None:
    """Set (or with None remove) the hook that is called at every point reached."""
    global _hook
    _hook = hook


class FaultPlan:
    """A hook that acts on the NTH matching call; it has the environment variable's syntax and can be used
    in tests too.
    """

    def __init__(self, text: str, *, trace: str = "") -> None:
        self.rules: list[tuple[str, str, int, str]] = []
        self.seen: list[int] = []
        self.trace = trace
        for part in filter(None, text.split(",")):
            point, when, nth, action = part.rsplit(":", 3)
            self.rules.append((point, when, int(nth), action))
            self.seen.append(0)

    def __call__(self, point: str, when: str) -> None:
        if self.trace:
            fd = os.open(self.trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(fd, f"{point}:{when}\n".encode())
            os.close(fd)
        for i, (rule_point, rule_when, nth, action) in enumerate(self.rules):
            if rule_when != when or rule_point not in ("*", point):
                continue
            self.seen[i] += 1
            if self.seen[i] == nth:
                if action == "kill":
                    os.kill(os.getpid(), 9)
                raise Injected(point, when)


def install_from_environment(environ: Mapping[str, str]) -> None:
    """Install a FaultPlan if CALICO_FAULT or CALICO_FAULT_TRACE is set; executables call this once at start."""
    text, trace = environ.get("CALICO_FAULT", ""), environ.get("CALICO_FAULT_TRACE", "")
    if text or trace:
        install(FaultPlan(text, trace=trace))
