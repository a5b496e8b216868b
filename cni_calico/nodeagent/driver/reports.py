"""What a driver says of endpoints: in the status, and in the files that the CNI plugin may wait for.

Rule: an endpoint of which it says nothing is not up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.driver.messages import DriverSaid
from cni_calico.nodeagent.driver.stream import name_of
from cni_calico.nodeagent.policing.report.status_files import StatusFiles
from cni_calico.nodeagent.sync.known import EndpointName
from cni_calico.policy.wanted import WantedEndpoint

_UP, _ERROR = "up", "error"
ReportedName = TypeVar("ReportedName", EndpointName, str)


class DriverReports:
    """``note`` in the thread that reads, the rest in the engine's. ``endpoints``: those that the driver knows."""

    def __init__(self, context: Context, prefix: str, endpoints: Mapping[ResourceKey, WantedEndpoint]) -> None:
        """``prefix``: of the status files."""
        self._endpoints = endpoints
        self._of_workloads: dict[EndpointName, str] = {}
        self._of_hosts: dict[str, str] = {}
        self._changed = False
        self._files = StatusFiles(context.files, context.log, prefix, lambda: endpoints, self._is_up)

    def note(self, said: DriverSaid) -> bool:
        """Whether it is new."""
        if said.workload is not None:
            changed = _put(self._of_workloads, said.workload, said.status)
        else:
            changed = _put(self._of_hosts, said.host, said.status)
        self._changed |= changed
        return changed

    def keep_files(self, changed: Mapping[ResourceKey, WantedEndpoint | None]) -> None:
        """``changed``: endpoints that the driver was told."""
        anew, self._changed = self._changed, False
        self._files.note(changed)
        self._files.due |= anew
        self._files.keep()

    def problems(self) -> list[str]:
        """A sentence for each endpoint that the driver could not make."""
        failed = [f"workload {name[1]}" for name in _with_error(self._of_workloads.copy().items())]
        failed += [f"host endpoint {name}" for name in _with_error(self._of_hosts.copy().items())]
        return [f"{name}: the data plane driver reports an error" for name in sorted(failed)]

    def stop(self) -> None:
        """Nothing is in force any more."""
        self._files.clear()

    def _is_up(self, interface: str) -> bool:
        named = (name_of(endpoint) for endpoint in self._endpoints.values() if endpoint.interface == interface)
        return any(self._of_workloads.get(name) == _UP for name in named)


def _with_error(reports: Iterable[tuple[ReportedName, str]]) -> list[ReportedName]:
    return [name for name, status in reports if status == _ERROR]


def _put(known: dict[ReportedName, str], name: ReportedName, status: str) -> bool:
    before = known.get(name, "")
    if status:
        known[name] = status
    else:
        known.pop(name, None)
    return before != status
