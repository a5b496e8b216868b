"""The file of rules' numbers: what each number in the kernel stands for, for the recorder of flows and the next run.

Rule: a number is in the file before the kernel gets it, or the trouble is told, and it is written later: enforcement
never waits for the file. No number is ever another rule's, also one that was never written: each run goes on from the
clock's seconds, and far behind the largest number in the file. A file that is unreadable is set aside and begun anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from errno import EFBIG

from cni_calico.flows.deciders import NUMBERS_BYTES, Decider, parse_line, render_line
from cni_calico.flows.groups import groups_of, read_pair
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.context.recording import DENIED, DISABLED, recorded_flows
from cni_calico.nodeagent.policing.enforce.filters import IPTABLES, DataPlane
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings, Networks
from cni_calico.regular import append_whole, make_directories, read_regular

DIRECTORY, NAME = "flows", "numbers"
_KEPT, _MOST = 60_000, 90_000  # lines: when there are more than that, the newest are kept, and those in force
_UNWRITTEN = 1 << 16  # numbers that an earlier run may have given without writing them


class NumbersFile:
    """Nothing is read or made before flows are recorded. ``in_use``: rules that decide are put into force; where they
    are not, nothing is written.
    """

    def __init__(
        self,
        state_dir: str,
        log: Log,
        why_not: Callable[[bool], str] = lambda allowed: "",
        clock: Callable[[], float] = time.time,
        *,
        keeps: bool = True,
    ) -> None:
        """``why_not``: why rules cannot be recorded here, "" if they can; asked once with and once without rules that
        let through. ``keeps``: whether the file is ever changed.
        """
        self._keeps = keeps
        self.path = f"{state_dir}/{DIRECTORY}/{NAME}"
        self._log, self._clock, self._why_not = log, clock, why_not
        self._numbers: RuleNumbers | None = None
        self._unwritten: list[tuple[int, Decider]] = []
        self._most = _MOST
        self._anew = False  # the file has to be written as a whole
        self._refused: dict[bool, str] = {}
        self.trouble = ""
        self.in_use = True

    def recording(self, flows: str) -> Recording | None:
        """What rules do, for a value of Flows: Enabled, Denied, Disabled."""
        if flows == DISABLED:
            self.trouble = ""
            return None
        allowed = flows != DENIED
        if allowed not in self._refused:
            self._refused[allowed] = self._why_not(allowed)
        if self._refused[allowed]:
            self._tell(self._refused[allowed])
            return None
        if self.trouble in self._refused.values():
            self._tell("")
        if self._numbers is None:
            self._numbers = self._load()
        return Recording(self._numbers, allowed=allowed)

    def go_past(self, in_kernel: Callable[[], Iterable[int]]) -> None:
        """Give larger numbers than these, which an earlier run gave, maybe without a file; asked if it is recorded."""
        if self._numbers is not None:
            self._numbers.go_past(in_kernel())

    def keep(self, in_force: Callable[[], Container[int]] = frozenset) -> None:
        """Write down what is new. Nothing is raised: a failure is told, and what is not written is tried again with the
        next transaction. ``in_force``: the numbers that the kernel has, or gets; asked when the file is shortened.
        """
        if self._numbers is None or not (self._keeps and self.in_use):
            return
        self._unwritten += self._numbers.take_new()
        if len(self._numbers) > self._most:
            self._numbers.forget(_KEPT, in_force())
            self._most = max(_MOST, 2 * len(self._numbers))
            self._anew = True
        if self._anew:
            self._unwritten = []  # they are among those that are known
        elif not self._unwritten:
            return
        try:
            if self._anew:
                make_directories(os.path.dirname(self.path), 0o700)
                Files().write_atomic(self.path, _render(self._numbers.known()), 0o600)
            else:
                append_whole(self.path, _render(self._unwritten), durable=True)
            self._unwritten, self._anew = [], False
            self._tell("")
        except OSError as e:
            self._tell(f"flows name rules as unknown: cannot write {self.path}: {e.strerror}")

    def _load(self) -> RuleNumbers:
        now = int(self._clock())
        try:
            data = read_regular(self.path, NUMBERS_BYTES, follow=False)
        except FileNotFoundError:
            return RuleNumbers((), now)
        except OSError as e:
            self._tell(f"what flows were recorded before names rules as unknown: cannot read {self.path}: {e.strerror}")
            if e.errno == EFBIG:
                self._set_aside()
            return RuleNumbers((), now + _UNWRITTEN)
        lines = data.decode("utf-8", "surrogateescape").splitlines()
        found = [one for one in map(parse_line, lines) if one is not None]
        largest = max((number for number, _ in found), default=now)
        if len(found) < len(lines) - 1:  # the last one may have been cut by a crash
            self._set_aside()
            found = []
        else:
            self._anew = len(found) < len(lines) or not data.endswith(b"\n")
        return RuleNumbers(found, max(now, largest + _UNWRITTEN))

    def _set_aside(self) -> None:
        if not self._keeps:
            return
        try:
            os.replace(self.path, f"{self.path}.bad")
            self._log.warning(f"{self.path} is not as it was written: set aside as {self.path}.bad, and begun anew")
        except OSError as e:
            self._tell(f"flows name rules as unknown: cannot set {self.path} aside: {e.strerror}")

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            self._log.warning(trouble)
        self.trouble = trouble


def _render(numbers: Iterable[tuple[int, Decider]]) -> bytes:
    return "".join(render_line(*one) for one in numbers).encode()


class PlaneRules:
    """What the rules of a packet filter depend on, with what they do for the recorder."""

    def __init__(self, plane: DataPlane, numbers: NumbersFile, run_dir: str) -> None:
        self.numbers = numbers
        self._run_dir, self._pair = run_dir, -1
        self._plane = plane
        self.refresh_s = plane.refresh_s

    def settings(self, felix: FelixSettings, service_networks: Networks) -> FilterSettings:
        recording = self.numbers.recording(recorded_flows(felix))
        self._pair = -1
        if recording is not None:
            self._pair = read_pair(self._run_dir)
            iptables = self._plane.name == IPTABLES
            recording = replace(recording, by_iptables=iptables, groups=groups_of(self._pair))
        return self._plane.settings(felix, service_networks, recording)

    @property
    def report(self) -> bool:
        """Whether the last settings have rules report to the recorder."""
        return self._pair >= 0

    def are_out_of_date(self) -> bool:
        """Whether the recorder listens to other groups than those that the last settings report to."""
        return self._pair >= 0 and read_pair(self._run_dir) != self._pair
