"""Accepts forwarding for workloads if another program's FORWARD chain drops it (hosts with Docker).

Rule: reading the rules costs processes, so they are read when the interfaces' prefixes change, when the kernel reports
that the chain of iptables-nft has changed, when calico-docker says that Docker was started, and at a full resync.
"""

from __future__ import annotations

from collections.abc import Collection

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter import iptables
from cni_calico.kernel.monitor import FORWARD
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.forward_rules import plan_forward
from cni_calico.nodeagent.dataplane.passes import Pass


class Forwarding:
    name = "accepting forwarding"

    def __init__(self) -> None:
        self._settled: tuple[str, ...] | None = None

    def wants(self, changed: Collection[str]) -> bool:
        return FORWARD in changed

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if self._settled == desired.forward_prefixes and not full:
            return
        self._settled = None
        for family, variant in iptables.readable_variants():
            saved = iptables.read_rules(family, variant, deadline)
            script = plan_forward(saved, desired.forward_prefixes)
            if script:
                iptables.apply_rules(family, variant, script, deadline, lock_s=felix.iptables_lock_s)
                done.changed.append(f"accepted forwarding for workloads (IPv{family}, {variant})")
        self._settled = desired.forward_prefixes
