"""PURE: tunnel devices that are not up yet wait for the rules that keep strangers out of them.

Rule: a device that is up stays up. One that is not comes up once its rules are in force, and one that is to have
another UDP port keeps its own until there are rules for the new one, however long that takes. Only if the packet filter
refuses them where no policy is to be enforced, it comes up, or changes, after a while without them, and the status says
so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from cni_calico.model.host import TunnelDevice
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.status.policing import Standing

PATIENCE_S = 10.0
_UNKNOWN = "the packet filter has not been set yet"


@dataclass(slots=True)
class HeldDevices:
    """``since``: when each device began to be without its rules; ``refused_since``: when the refusal became known."""

    since: dict[str, float] = field(default_factory=dict)
    refused_since: float | None = None

    def select(
        self, desired: Desired, up: Collection[str], ports: Mapping[str, int], standing: Standing, now: float
    ) -> tuple[Desired, int]:
        """What to do now, and how many devices wait. ``up``: the names of the interfaces that are up; ``ports``: those
        that VXLAN devices have.
        """
        held: set[str] = set()
        kept: dict[str, TunnelDevice] = {}
        problems: list[str] = []
        if not standing.unguardable:
            self.refused_since = None
        elif self.refused_since is None:
            self.refused_since = now
        gives_up = self.refused_since is not None and now - self.refused_since >= PATIENCE_S
        why = standing.unguardable or standing.failing or "; ".join(standing.problems) or _UNKNOWN
        for name, device in desired.devices.items():
            if name in standing.guarded and _has_rules_at(device.port, standing):
                self.since.pop(name, None)
                continue
            waited_s = now - self.since.setdefault(name, now)
            if name not in up and not gives_up:
                held.add(name)
                if waited_s >= PATIENCE_S:
                    problems.append(f"{name} stays down, because nothing would keep strangers out of it: {why}")
            elif ports.get(name, device.port) != device.port and not gives_up:
                kept[name] = replace(device, port=ports[name])
                if waited_s >= PATIENCE_S:
                    problems.append(
                        f"{name} keeps port {ports[name]}, because nothing would keep strangers out of it at port "
                        f"{device.port}: {why}"
                    )
            elif waited_s >= PATIENCE_S:
                problems.append(f"{name} is up, and nothing keeps strangers out of it: {why}")
        for gone in self.since.keys() - desired.devices.keys():
            del self.since[gone]
        if not held and not kept:
            return replace(desired, problems=(*desired.problems, *problems)) if problems else desired, 0
        return replace(
            desired,
            devices={name: kept.get(name, device) for name, device in desired.devices.items() if name not in held},
            routes=frozenset(route for route in desired.routes if route.device not in held),
            neighbours=frozenset(one for one in desired.neighbours if one.device not in held),
            forwarding=frozenset(one for one in desired.forwarding if one.device not in held),
            problems=(*desired.problems, *problems),
            held=frozenset(held),
        ), len(held) + len(kept)


def _has_rules_at(port: int, standing: Standing) -> bool:
    """``port``: 0 for a device that has none."""
    return not port or standing.vxlan_ports is None or port in standing.vxlan_ports
