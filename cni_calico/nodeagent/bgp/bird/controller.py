"""Puts configurations into force: writes the files, has BIRD check and read them, and keeps the BIRD process running.

Rule: BIRD never reads a configuration that it has not accepted before. A refused one is kept aside with the reason, and
the one in force stays in force; the same text twice causes no work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

from cni_calico.deadline import Deadline
from cni_calico.doing import Doing
from cni_calico.errors import BirdRefused, BirdUnavailable, BirdUnsupported, CalicoError
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT, Log
from cni_calico.nodeagent.bgp.bird.adoption import find_beside, keep_first
from cni_calico.nodeagent.bgp.bird.control import (
    BirdControl,
    apply_config,
    check_config,
    read_sessions,
    read_status,
    withdraw_and_end,
)
from cni_calico.nodeagent.bgp.bird.leftovers import remove_all, remove_leftovers
from cni_calico.nodeagent.bgp.bird.process import (
    BirdPaths,
    BirdProcess,
    check_files,
    find_binary,
    has_bird_routes,
    require_version,
)
from cni_calico.nodeagent.bgp.bird.session_ends import SessionState
from cni_calico.nodeagent.bgp.bird.status import BirdStatus
from cni_calico.nodeagent.bgp.config.render import AGGREGATION, IPAM, MAIN, BirdConfig

NEXT, REFUSED = "next", "refused"  # below the configuration's directory
REASON = "reason.txt"
_ORDER = (AGGREGATION, IPAM, MAIN)  # the one that includes the others comes last

UNCHANGED, CONFIGURED, STARTED, REFUSAL, OFF = "unchanged", "configured", "started", "refused", "off"


@dataclass(frozen=True, slots=True)
class Applied:
    """``outcome`` is UNCHANGED, CONFIGURED, STARTED, REFUSAL (``detail`` has BIRD's words) or OFF."""

    outcome: str
    detail: str = ""


class BirdController:
    """The only owner of BIRD on this node. Safe to use from several threads; ``apply`` runs one at a time."""

    def __init__(
        self,
        paths: BirdPaths,
        *,
        log: Log = SILENT,
        output_fd: int = 2,
        left_routes: Callable[[Deadline], bool] = has_bird_routes,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.paths = paths
        self.log = log
        self.files = Files()
        self.process = BirdProcess(self.paths, log=log, output_fd=output_fd, changed=changed)
        self.refusal = ""  # why the wanted configuration is not in force, for health
        self._left_routes = left_routes
        self._in_force: Mapping[str, str] | None = None
        self._waiting: Mapping[str, str] | None = None  # written for a BIRD that is not there
        self._lock = Lock()

    # -- what the agent calls -----------------------------------------------------------------------------------------

    def apply(self, config: BirdConfig, deadline: Deadline) -> Applied:
        """Put ``config`` in force and make BIRD run (or not, if it has no files).

        Call it at every resync, even if nothing has changed: it repairs what BIRD leaves in the kernel. Raises
        BirdUnsupported, BirdUnavailable, KernelError, DeadlineExceeded: then try again later.
        """
        with self._lock:
            applied = self._apply(config, deadline) if config.files else self._turn_off(deadline)
        if self.process.running:
            self._repair_kernel(deadline)
        if applied.outcome != UNCHANGED:
            self.log.info(f"BIRD: {applied.outcome}" + (f": {applied.detail}" if applied.detail else ""))
        return applied

    def keep(self, deadline: Deadline) -> bool:
        """Have BIRD run with the configuration that it last accepted; returns whether it accepts it. For times when the
        wanted configuration is not known. Raises as ``apply`` does.
        """
        with self._lock:
            if not self.process.adopt():
                self._start_what_is_there(deadline)
        if self.process.running:
            self._repair_kernel(deadline)
        return self.process.running

    @property
    def running(self) -> bool:
        """Whether the BIRD that we started or adopted is alive."""
        return self.process.running

    def status(self, deadline: Deadline) -> BirdStatus:
        """Raises BirdUnavailable."""
        return read_status(self.paths.socket, deadline)

    def sessions(self, deadline: Deadline) -> dict[str, SessionState]:
        """Raises BirdUnavailable."""
        return read_sessions(self.paths.socket, deadline)

    def reload_kernel(self, deadline: Deadline) -> None:
        """Have BIRD write its routes to the kernel again: it gives up on those whose device (tunl0) was missing."""
        with BirdControl(self.paths.socket, deadline) as control:
            control.tell('reload out "kernel_v*"', deadline)

    def close(self) -> None:
        """End BIRD as for a restart: the kernel keeps its routes, and the peers keep ours for a while."""
        with self._lock:
            self.process.stop()

    def _repair_kernel(self, deadline: Deadline) -> None:
        try:
            removed = remove_leftovers(self.paths.socket, deadline)
        except CalicoError as e:
            self.log.warning(f"routes that BIRD made with an old metric may be left in the kernel: {e}")
            return
        if removed:
            self.log.info(f"removed {removed} routes that BIRD had left in the kernel with an old metric")

    # -- one configuration --------------------------------------------------------------------------------------------

    def _apply(self, config: BirdConfig, deadline: Deadline) -> Applied:
        running = self.process.adopt()
        if running and config.files == self._in_force and not self.process.fresh:
            self.refusal = ""
            return Applied(UNCHANGED)
        if not running and self.process.waits and config.files == self._waiting:
            self.process.start(deadline, graceful=False)  # says what it waits for
        with Doing(f"write {self.paths.config_directory}", BirdUnavailable):
            reason = self._stage(config.files, running, deadline)
        if reason:
            self._start_what_is_there(deadline)
            return Applied(REFUSAL, reason)
        if not self.process.running:
            self._waiting = config.files
            self.process.start(deadline, graceful=self._left_routes(deadline))
            if self.process.adopted is None:
                self._in_force = config.files
                return Applied(STARTED)
            self._place(config.files)
        with BirdControl(self.paths.socket, deadline) as control:
            apply_config(control, self.process.main, deadline)
        self._in_force, self.process.fresh = config.files, False
        return Applied(CONFIGURED)

    def _stage(self, files: Mapping[str, str], running: bool, deadline: Deadline) -> str:
        """Write, check and move the files; if BIRD refuses them, set them aside and return its words."""
        directory = self.paths.config_directory
        self._write(f"{directory}/{NEXT}", files)
        self.refusal = self._check(f"{directory}/{NEXT}/{MAIN}", running, deadline)
        if self.refusal:
            self._write(f"{directory}/{REFUSED}", {**files, REASON: f"{self.refusal}\n"})
            return self.refusal
        self._in_force = None  # until BIRD has read them
        self._place(files)
        for name in (*_ORDER, REASON):
            self.files.remove(f"{directory}/{REFUSED}/{name}")
        return ""

    def _place(self, files: Mapping[str, str]) -> None:
        """Write them where BIRD reads them when it starts."""
        directory, main = os.path.split(self.process.main)
        if directory != os.path.normpath(self.paths.config_directory):
            kept = keep_first(self.process.main, self.files)
            if kept:
                self.log.warning(f"{self.process.main} was not written by calico-node: what it held is in {kept}")
        self._write(directory, files, main=main)

    def _write(self, directory: str, files: Mapping[str, str], *, main: str = MAIN) -> None:
        self.files.make_directory(directory, 0o755)
        reader = self.process.adopted
        for name in sorted(files, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
            # they contain the sessions' passwords
            path = f"{directory}/{main if name == MAIN else name}"
            self.files.write_atomic(path, files[name].encode("utf-8", "surrogateescape"), 0o600)
            if reader is not None and reader.user:
                os.chown(path, reader.user, reader.group, follow_symlinks=False)

    def _check(self, main: str, running: bool, deadline: Deadline) -> str:
        """BIRD's complaint about a configuration, "" if it accepts it."""
        if running:
            try:
                with BirdControl(self.paths.socket, deadline) as control:
                    check_config(control, main, deadline)
                return ""
            except BirdRefused as e:
                return str(e)
            except BirdUnavailable as e:
                self.log.warning(f"BIRD does not check the configuration: {e}")
        try:
            binary = find_binary(self.paths)
        except BirdUnsupported:
            if self.process.waits:  # it is in another container: it will check them itself
                return ""
            raise
        require_version(binary, deadline)
        return check_files(binary, main, deadline)

    def _start_what_is_there(self, deadline: Deadline) -> None:
        """Run BIRD, unless it runs, with the last configuration that it accepted, if there is one."""
        if self.process.running or self.process.waits or not self.files.exists(self.paths.main):
            return
        fault = check_files(find_binary(self.paths), self.paths.main, deadline)
        if fault:
            self.log.error(f"the previous configuration is not usable either: {fault}")
            return
        self.process.start(deadline, graceful=self._left_routes(deadline))

    # -- no BGP -------------------------------------------------------------------------------------------------------

    def _turn_off(self, deadline: Deadline) -> Applied:
        """End BIRD and undo what it did in the kernel, even if it has ended already: its routes outlive it. Another
        service's is left alone, and so are its routes, at whatever socket it answers: nothing tells the routes of two
        BIRDs apart, and one that lives removes what it does not want by itself when it scans the kernel's table.
        """
        try:
            was_running, was_used = self.process.adopt(), self.files.exists(self.paths.main)
        except BirdUnsupported:
            return Applied(UNCHANGED)
        if self.process.adopted is not None or (self.process.waits and not was_running):
            if self.process.fresh:
                self.process.fresh = False
                self.log.warning(f"BGP is off here, and {self.process.adopted}, goes on as it is: stop that service")
            return Applied(UNCHANGED)
        if was_running:
            self.process.stop(withdraw_and_end)
        if was_used:
            other = find_beside()
            removed = 0 if other else remove_all(deadline)
            self._remove_files()
            left = f"; the routes of another BIRD (process {other}) stay as they are" if other else ""
            self.log.info(f"BGP is off here: removed {removed} routes that BIRD had left in the kernel{left}")
        self._in_force = None
        self.refusal = ""
        return Applied(OFF if was_running or was_used else UNCHANGED)

    def _remove_files(self) -> None:
        directory = self.paths.config_directory
        for place in (f"{directory}/{NEXT}", f"{directory}/{REFUSED}", directory):
            for name in (REASON, *_ORDER):  # the main file last: its presence means that there is something to undo
                self.files.remove(f"{place}/{name}")
