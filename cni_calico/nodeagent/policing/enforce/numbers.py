"""The file of rules' numbers: what each number in the kernel stands for, for the recorder of flows and the next run.

Rule: a number is in the file before the kernel gets it, or the trouble is told: enforcement never waits for the file. A
file that is lost or unreadable is begun anew, with numbers that were never given: they go on from the clock's seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from cni_calico.flows.deciders import Decider, parse_line, render_line
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.context.recording import DENIED, DISABLED
from cni_calico.nodeagent.policing.enforce.filters import IPTABLES, DataPlane
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings, Networks
from cni_calico.regular import make_directories, require_regular

DIRECTORY, NAME = "flows", "numbers"
_KEPT, _MOST = 100_000, 150_000  # lines: when there are more than that, only the newest are kept


class NumbersFile:
    """Nothing is read or made before flows are recorded."""

    def __init__(
        self, state_dir: str, log: Log, why_not: Callable[[], str] = lambda: "", clock: Callable[[], float] = time.time
    ) -> None:
        """``why_not``: why rules cannot be recorded here, "" if they can; asked once."""
        self.path = f"{state_dir}/{DIRECTORY}/{NAME}"
        self._log, self._clock, self._why_not = log, clock, why_not
        self._numbers: RuleNumbers | None = None
        self._refused: str | None = None
        self.trouble = ""

    def recording(self, flows: str) -> Recording | None:
        """What rules do, for a value of Flows: Enabled, Denied, Disabled."""
        if flows == DISABLED:
            self.trouble = ""
            return None
        if self._refused is None:
            self._refused = self._why_not()
        if self._refused:
            self._tell(self._refused)
            return None
        if self._numbers is None:
            self._numbers = self._load()
        return Recording(self._numbers, allowed=flows != DENIED)

    def keep(self) -> None:
        """Write down what is new. Nothing is raised: a failure is told, and what is not written stays unknown."""
        new = self._numbers.take_new() if self._numbers is not None else []
        if not new:
            return
        try:
            self._append("".join(render_line(*one) for one in new).encode())
            self._tell("")
        except OSError as e:
            self._tell(f"flows name rules as unknown: cannot write {self.path}: {e.strerror}")

    def _append(self, data: bytes) -> None:
        make_directories(os.path.dirname(self.path), 0o700)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        fd = os.open(self.path, flags, 0o600)
        try:
            require_regular(fd, self.path)
            while data:
                data = data[os.write(fd, data) :]
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def _load(self) -> RuleNumbers:
        try:
            lines = self._read().decode("utf-8", "surrogateescape").splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as e:
            self._tell(f"what flows were recorded before names rules as unknown: cannot read {self.path}: {e.strerror}")
            lines = []
        known = [one for one in map(parse_line, lines) if one is not None]
        if lines and len(known) < len(lines) - 1:  # the last one may have been cut by a crash
            self._set_aside()
            known = []
        if len(known) > _MOST:
            known = known[-_KEPT:]
            self._rewrite(known)
        return RuleNumbers(known, 0 if known else int(self._clock()))

    def _read(self) -> bytes:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        with open(fd, "rb") as file:
            require_regular(fd, self.path)
            return file.read()

    def _set_aside(self) -> None:
        try:
            os.replace(self.path, f"{self.path}.bad")
            self._log.warning(f"{self.path} is not as it was written: set aside as {self.path}.bad, and begun anew")
        except OSError as e:
            self._tell(f"flows name rules as unknown: cannot set {self.path} aside: {e.strerror}")

    def _rewrite(self, known: list[tuple[int, Decider]]) -> None:
        try:
            data = "".join(render_line(*one) for one in known).encode()
            Files().write_atomic(self.path, data, 0o600)
        except OSError as e:
            self._tell(f"cannot shorten {self.path}: {e.strerror}")

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            self._log.warning(trouble)
        self.trouble = trouble


class PlaneRules:
    """What the rules of a packet filter depend on, with what they do for the recorder."""

    def __init__(self, plane: DataPlane, numbers: NumbersFile) -> None:
        self.numbers = numbers
        self._plane = plane
        self.refresh_s = plane.refresh_s

    def settings(self, felix: FelixSettings, service_networks: Networks) -> FilterSettings:
        recording = self.numbers.recording(felix.flows)
        if recording is not None and self._plane.name == IPTABLES:
            recording = replace(recording, by_iptables=True)
        return self._plane.settings(felix, service_networks, recording)
