"""A recorder whose steps and time a test makes, with decisions and ends that the test names instead of the kernel's.

Rule: only the kernel's side is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from cni_calico.flows import recorder as module
from cni_calico.flows import tracking
from cni_calico.flows.arrivals import DecidedPacket, in_pairs
from cni_calico.flows.groups import groups_of
from cni_calico.flows.limits import USUAL_LIMITS, FlowLimits
from cni_calico.flows.recorder import Recorder
from cni_calico.kernel.netlink.ended import TrackedConnection
from cni_calico.log import SILENT

RING_BYTES = 1 << 20
NOW = 2_000_000_000.0


def paired(decisions: Sequence[tuple[bool, bytes, int]]) -> list[DecidedPacket]:
    """Reports that were read one after the other: whether it was let through, key, number."""
    found: list[DecidedPacket] = []
    for allowed, together in groupby(decisions, itemgetter(0)):
        reports = [(number, key) for _, key, number in together]
        found += in_pairs(reports, allowed=allowed, key_of=lambda key: key)[0]
    return found


class Arriving:
    """In place of the kernel's reports."""

    overrun = strange = slow = pair = 0
    groups = groups_of(0)
    is_behind = False

    def __init__(self) -> None:
        self.came = 1
        self.limits = USUAL_LIMITS
        self.decisions: list[tuple[bool, bytes, int]] = []
        self.ended: list[TrackedConnection] = []

    def take(self) -> tuple[list[DecidedPacket], list[TrackedConnection], bool]:
        taken = paired(self.decisions), self.ended
        self.came += len(self.decisions) + len(self.ended)
        self.decisions, self.ended = [], []
        return *taken, False

    def limit(self, limits: FlowLimits) -> None:
        self.limits = limits

    def describe_strange(self) -> str:
        return ""

    def behind_s(self) -> float:
        return 3600.0

    def descriptors(self) -> list[int]:
        return []

    def lost(self) -> dict[str, int]:
        return {}

    def recorded(self) -> dict[str, int]:
        return {}

    def new_losses(self, now: float) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        pass


class NoComparison:
    unaccounted = None

    def __init__(self, *_: object) -> None:
        pass

    def denied_packets(self) -> list[Any]:
        return []

    def due_s(self) -> float:
        return 60.0

    def go_on(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def arriving_instead_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> Arriving:
    arriving = Arriving()
    monkeypatch.setattr(module, "Arrivals", lambda clock, pair, allowed: arriving)
    monkeypatch.setattr(module, "Comparison", NoComparison)
    monkeypatch.setattr(module, "RuleAccounting", NoComparison)
    monkeypatch.setattr(tracking.ConnectionTracking, "_switch_on", lambda self: True)
    monkeypatch.setattr(tracking.ConnectionTracking, "look", lambda self: None)
    for name in ("_SLEEP_S", "_CALM_S", "_IDLE_S"):
        monkeypatch.setattr(module, name, 0.01)  # nothing arrives meanwhile
    return arriving


class SteppedRecorder:
    def __init__(self, root: Path, arriving: Arriving, agent_fd: int | None = None, *, allowed: bool = True) -> None:
        self.root, self.arriving, self.now, self.stepped = root, arriving, NOW, 0.0
        clocks = (lambda: self.wall, lambda: self.now)
        self.recorder = Recorder(str(root), str(root), SILENT, RING_BYTES, *clocks, agent_fd=agent_fd, allowed=allowed)

    @property
    def wall(self) -> float:
        """What the clock says that may be set: by ``stepped`` so far."""
        return self.now + self.stepped

    def step(self, *decisions: tuple[bool, bytes, int], after_s: float = 0.05) -> None:
        self.now += after_s
        self.arriving.decisions += decisions
        self.recorder.step()
