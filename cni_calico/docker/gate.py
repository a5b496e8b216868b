"""Closed until the policy is in force: which interfaces wait for it, and when one may be opened.

Rule: an interface is among the closed ones before it is up, and is taken out when the agent's status file says that its
policy is in force. It is open at once only where no agent has ever run, or where the agent says that it enforces
nothing. What cannot be read counts as not in force.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from cni_calico.cni.netconf import ENDPOINT_STATUS_DIR
from cni_calico.deadline import Deadline
from cni_calico.directories import BOOT_TABLE, POLICY_DECISION
from cni_calico.docker.documents import host_name
from cni_calico.errors import CalicoError
from cni_calico.kernel.files import Files
from cni_calico.kernel.filter.boot_table import apply_waiting, is_waiting
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import Log
from cni_calico.model.identity import LIBNETWORK
from cni_calico.model.resources import Address
from cni_calico.plugin.policy_decision import read_decision
from cni_calico.plugin.waits import comparable, status_fields, status_file_name

_LOOK_S, _SOON_S, _LATER_S = 0.005, 0.2, 0.2
_FILTER_S = 10.0


class PolicyGate:
    """The interfaces of endpoints that wait. ``opened`` is told each endpoint whose policy has come into force."""

    def __init__(self, files: Files, run_dir: str, nodename_path: str, log: Log) -> None:
        self._files, self._run_dir, self._nodename_path, self._log = files, run_dir, nodename_path, log
        self._guard = threading.Lock()
        self._waiting: dict[str, Mapping[str, Any]] = {}  # what an endpoint's status file has to say
        self._closed: frozenset[str] | None = None  # the names in the packet filter; None: not known
        self._kernel: NfTables | None = None
        self._changed = threading.Condition(self._guard)
        self.opened: Callable[[str], None] = lambda endpoint: None

    def is_due(self) -> bool:
        """Whether a policy is worth waiting for on this host."""
        decision = read_decision(self._files, f"{self._run_dir}/{POLICY_DECISION}")
        if decision.lives:
            return decision.is_due
        seen = (f"{self._run_dir}/{POLICY_DECISION}", f"{self._run_dir}/{BOOT_TABLE}", self._nodename_path)
        return any(map(self._files.exists, seen))

    def close(self, endpoint: str, mac: str, addresses: Iterable[Address]) -> None:
        """Close its interface, which need not exist yet, until its policy is in force. Raises KernelError."""
        with self._guard:
            self._waiting[endpoint] = status_fields(host_name(endpoint), mac, addresses)
            try:
                self._write()
            except CalicoError:
                del self._waiting[endpoint]
                raise
            self._changed.notify_all()

    def close_all(self, endpoints: Mapping[str, tuple[str, Collection[Address]]]) -> None:
        """Close these and no others; at the start. Raises KernelError."""
        with self._guard:
            for endpoint, (mac, addresses) in endpoints.items():
                self._waiting[endpoint] = status_fields(host_name(endpoint), mac, addresses)
            if endpoints or not self._closed:
                self._write()

    def forget(self, endpoint: str) -> None:
        """Its interface is gone."""
        with self._guard:
            if self._waiting.pop(endpoint, None) is not None:
                self._try_write()
                self._changed.notify_all()

    def wait(self, endpoint: str, deadline: Deadline) -> bool:
        """Whether its policy is in force by then."""
        with self._guard:
            while endpoint in self._waiting:
                if deadline.expired():
                    return False
                self._changed.wait(max(0.001, deadline.remaining_s()))
        return True

    def repair(self, deadline: Deadline) -> bool:
        """Close again what another program has opened; whether it had. Raises KernelError."""
        with self._guard:
            if not self._closed or is_waiting(self._closed, deadline):
                return False
            self._closed = None
            self._write()
        return True

    def waiting(self) -> frozenset[str]:
        with self._guard:
            return frozenset(self._waiting)

    def run(self, stopping: threading.Event) -> None:
        """Open what may be opened, until ``stopping``: soon after something was closed, later less often."""
        soon = Deadline.after(_SOON_S)
        while not stopping.is_set():
            with self._guard:
                while not self._waiting and not stopping.is_set():
                    self._changed.wait(1.0)
                    soon = Deadline.after(_SOON_S)
                count = len(self._waiting)
            self.look()
            stopping.wait(_LATER_S if soon.expired() else _LOOK_S)
            if len(self.waiting()) > count:
                soon = Deadline.after(_SOON_S)

    def look(self) -> None:
        """Open the interfaces whose policies are in force."""
        decision = read_decision(self._files, f"{self._run_dir}/{POLICY_DECISION}")
        directory = decision.directory or ENDPOINT_STATUS_DIR
        nothing_due = not self.is_due()
        with self._guard:
            candidates = dict(self._waiting)
        ready = [
            endpoint
            for endpoint, fields in candidates.items()
            if nothing_due or self._says(f"{directory}/{status_file(endpoint)}", fields)
        ]
        if not ready:
            return
        with self._guard:
            removed = {
                endpoint: fields for endpoint in ready if (fields := self._waiting.pop(endpoint, None)) is not None
            }
            if not self._try_write():
                self._waiting.update(removed)
                return
            self._changed.notify_all()
        for endpoint in removed:
            self.opened(endpoint)

    def _says(self, path: str, fields: Mapping[str, Any]) -> bool:
        try:
            found = json.loads(self._files.read_bytes(path))
            return isinstance(found, dict) and comparable(found) == comparable(fields)
        except (OSError, ValueError, TypeError, RecursionError):
            return False

    def _try_write(self) -> bool:
        try:
            self._write()
        except CalicoError as e:
            self._log.error(f"cannot open interfaces whose policies are in force: {e}")
            return False
        return True

    def _write(self) -> None:
        wanted = frozenset(map(host_name, self._waiting))
        if wanted == self._closed:
            return
        before, self._closed = self._closed, None
        apply_waiting(wanted, Deadline.after(_FILTER_S), before, self._open_kernel())
        self._closed = wanted

    def _open_kernel(self) -> NfTables | None:
        """It stays open: a container's start would wait for its end. None where there is no nf_tables."""
        if self._kernel is None:
            try:
                self._kernel = NfTables()
            except CalicoError:
                return None
        return self._kernel


def status_file(endpoint: str) -> str:
    """PURE: the name of the file by which the agent says that an endpoint's policy is in force."""
    return status_file_name(LIBNETWORK, f"{LIBNETWORK}/{LIBNETWORK}", endpoint)
