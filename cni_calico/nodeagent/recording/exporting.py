"""Tells the recorder of flows where they are exported to, and what this node's workloads are called there.

Rule: there is a file only while flows are exported; the recorder exports as long as it is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from cni_calico.flows.export.wanted import EXPORT, EndPath, ExportedEnd, Target, render_export
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.context.recording import ENABLED, asks_for_export, exports_flows
from cni_calico.nodeagent.recording.keeper import name_of

_PART = "export of flows"
_USELESS = "flows are not exported as wanted: none are recorded, because the parameter Flows is Disabled"


def target_of(felix: FelixSettings, node: str) -> Target | None:
    """None if nothing is exported. ``node``: this one's name."""
    if not exports_flows(felix):
        return None
    return Target(
        felix.flow_logs_server,
        felix.relay_ca,
        felix.relay_certificate,
        felix.relay_key,
        felix.flow_logs_interval_s,
        felix.flow_logs_local == ENABLED,
        node if felix.flow_host_endpoints == ENABLED else "",
    )


def end_of(endpoint: WorkloadEndpoint) -> tuple[EndPath, ExportedEnd]:
    """Pods that have the same owner share a name, which their generateName begins; others are called as they are."""
    name, metadata = name_of(endpoint), endpoint.metadata
    begins = metadata.extra.get("generateName")
    shared = f"{begins}*" if endpoint.pod and isinstance(begins, str) and begins else name.name
    return (name.namespace, name.name), ExportedEnd(shared, metadata.labels)


class ExportTeller:
    """``use`` in one thread. ``tell`` is called with a part and what is wrong with it, "" for nothing."""

    def __init__(
        self, node: str, run_dir: str, log: Log, tell: Callable[[str, str], object] = lambda part, why: None
    ) -> None:
        self._node, self._path, self._log, self._tell = node, f"{run_dir}/{EXPORT}", log, tell
        self._written: bytes | None = None  # nobody knows yet what is there
        self._trouble = ""

    def use(self, felix: FelixSettings, endpoints: Iterable[WorkloadEndpoint]) -> None:
        """``endpoints``: this node's."""
        target = target_of(felix, self._node)
        data = b"" if target is None else render_export(target, sorted(map(end_of, endpoints), key=lambda end: end[0]))
        useless = _USELESS if target is None and asks_for_export(felix) else ""
        if data == self._written:
            self._note(useless)
            return
        try:
            if data:
                Files().write_atomic(self._path, data, 0o600, durable=False)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(self._path)
            self._written = data
            self._note(useless)
        except OSError as e:
            self._note(f"flows are not exported as wanted: cannot write {self._path}: {e.strerror}")

    def _note(self, trouble: str) -> None:
        if trouble == self._trouble:
            return
        if trouble:
            self._log.warning(trouble)
        self._trouble = trouble
        self._tell(_PART, trouble)
