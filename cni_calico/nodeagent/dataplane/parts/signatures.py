"""Sets the alias that proves whose a workload's host interface is, on those of older versions or upstream's plugin.

Rule: the CNI plugin sets the alias on what it makes (plugin/network/ownership.py). Here only interfaces whose alias
names no workload get one. An older version's alias is a digest of the container's ID: the pod for which IPAM's handle
has that ID gets the interface, whatever annotations say. Where IPAM does not know, and where there is no alias, it is
the only endpoint that names the interface, if the host routed every address of the record to it when the agent started,
before it added any routes: under Kubernetes the record may still be that of the previous sandbox.
"""

from __future__ import annotations

from collections.abc import Collection

from cni_calico.deadline import Deadline
from cni_calico.kernel.host_links import set_aliases
from cni_calico.kernel.host_routes import read_host_routes
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.endpoints import select_proven
from cni_calico.nodeagent.dataplane.passes import Pass, described


class Signatures:
    name = "signatures of interfaces"

    def __init__(self) -> None:
        self._signed = False

    def wants(self, changed: Collection[str]) -> bool:
        return False  # once, at the start

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if self._signed:
            return
        proven = select_proven(desired.unsigned, read_host_routes(deadline)) if desired.unsigned else ()
        failures = set_aliases({(item.index, item.device): item.alias for item in proven}, deadline)
        self._signed = not failures
        done.failed += map(str, failures)
        done.changed += described("interface", "signed", [item.device for item in proven] if not failures else [])
