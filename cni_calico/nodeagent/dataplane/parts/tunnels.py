"""Tunnel devices, and how the VXLAN devices reach other nodes: neighbours and forwarding entries.

Rule: only devices with our names are created, changed and removed; while a record cannot be read none is removed, and
one that waits for its rules is not touched.
"""

from __future__ import annotations

from collections.abc import Collection
from errno import EOPNOTSUPP

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import tunnels
from cni_calico.kernel.monitor import NEIGHBOURS
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.delta import Changes, DeviceChange, plan_devices, plan_set
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN
from cni_calico.nodeagent.dataplane.passes import Pass

DEVICES = (IPIP, *VXLAN.values())


class TunnelDevices:
    name = "tunnel devices"

    def wants(self, changed: Collection[str]) -> bool:
        return False  # every pass reads them

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        done.lacking.update(desired.lacking)
        changes, removed = plan_devices(desired.devices, tunnels.read_tunnels(DEVICES, deadline))
        for change in changes:
            try:
                done.changed.append(f"{_bring(change, deadline)} {change.wanted.name}")
            except KernelError as e:
                done.failed.append(str(e))
                if change.actual is None or change.remake:
                    done.lacking[change.wanted.name] = f"{e}{_remedy(change.wanted.kind, e)}"
        for name in removed:
            if desired.additive or name in desired.held:
                continue
            try:
                tunnels.remove_tunnel(name, deadline)
                done.changed.append(f"removed {name}")
            except KernelError as e:
                done.failed.append(str(e))


def _remedy(kind: str, error: KernelError) -> str:
    """What helps if the kernel does not know this kind of device."""
    if error.errno != EOPNOTSUPP:
        return ""
    return f"; load the kernel module (modprobe {kind}) or set another {kind}Mode"


def _bring(change: DeviceChange, deadline: Deadline) -> str:
    """Create or change one device; returns what was done."""
    if change.actual is not None and not change.remake:
        tunnels.change_tunnel(change.wanted, deadline)
        return "changed"
    if change.remake:
        tunnels.remove_tunnel(change.wanted.name, deadline)
    tunnels.create_tunnel(change.wanted, deadline)
    return "made"


class TunnelNeighbours:
    name = "neighbours"

    def __init__(self) -> None:
        self._settled: object = None  # the state to which the kernel was brought

    def wants(self, changed: Collection[str]) -> bool:
        return NEIGHBOURS in changed

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        wanted = (desired.neighbours, desired.forwarding, desired.additive)
        if wanted == self._settled and not full:
            return
        self._settled = None
        devices = [name for name in desired.devices if name != IPIP]
        neighbours, entries = tunnels.read_vteps(devices, deadline)
        hops, vteps = plan_set(desired.neighbours, neighbours), plan_set(desired.forwarding, entries)
        if desired.additive:
            hops, vteps = Changes(hops.add), Changes(vteps.add)
        if hops or vteps:
            failures = tunnels.apply_vteps((hops.add, hops.remove), (vteps.add, vteps.remove), deadline)
            done.failed += map(str, failures)
            count = sum(map(len, (hops.add, hops.remove, vteps.add, vteps.remove)))
            done.changed.append(f"{count} neighbours and forwarding entries")
            if failures:
                return
        self._settled = wanted
