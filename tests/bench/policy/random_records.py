"""Random records of a small cluster: policies of all kinds, host endpoints, network sets, labels.

Rule: all that is made is valid, and only these names, addresses and ports occur in it, so that what is said is often
about what is tried.
"""

from __future__ import annotations

import random
from typing import Any

from tests.netns.policing.lab import NODE

PORTS = [81, 82, 83]
NODE_PORT = 30080
HOST_NAMES = [f"h{number}" for number in range(4)]
AUTOMATIC = f"{NODE}-auto-hep"
NOBODYS = "203.0.113.9"
WITH_ALL = "projectcalico-default-allow"  # a profile that nobody has to store
SELECTORS = [
    "all()",
    "x == '1'",
    "x == '2'",
    "y == '1'",
    "has(y)",
    "x == '1' && y == '2'",
    "set == 'yes'",
    "host == 'yes'",
    "!has(host)",
]
NETS = [
    "10.65.0.0/30",
    "10.65.0.4/31",
    "10.65.0.2/32",
    "172.31.0.0/24",
    "172.31.1.9/32",
    "fd00::/126",
    "fd00::4/127",
    "fd31:1::/64",
]


class RandomRecords:
    """``own``: the host's addresses of each interface that host endpoints are for."""

    def __init__(self, seed: int, own: dict[str, list[str]]) -> None:
        self.random = random.Random(seed)
        self.own = own

    def labels(self) -> dict[str, str]:
        return {key: self.random.choice("12") for key in "xy" if self.random.random() < 0.7}

    def network_set(self) -> tuple[dict[str, Any], dict[str, str]]:
        pool = [f"10.65.0.{number}/32" for number in range(1, 7)] + [f"{a}/32" for a in ("172.31.0.9", "172.31.1.9")]
        return {"nets": self.random.sample(pool, 2)}, {"set": self.random.choice(["yes", "no"])}

    # -- host endpoints -----------------------------------------------------------------------------------------------

    def host(self) -> tuple[str, dict[str, Any], dict[str, str]]:
        """(name, spec, labels): by name, by its addresses, for all interfaces, or as the controllers make them."""
        name, spec = self.random.choice([*HOST_NAMES, AUTOMATIC]), {"node": NODE}
        labels = {**self.labels(), "host": self.random.choice(["yes", "yes", "no"])}
        profiles = self.random.choice([[], ["open"], [WITH_ALL]])
        if name == AUTOMATIC:
            addresses = [address for listed in self.own.values() for address in listed]
            spec |= {"interfaceName": "*", "expectedIPs": addresses, "profiles": [WITH_ALL]}
            return name, spec, {**labels, "projectcalico.org/created-by": "calico-kube-controllers"}
        interface = self.random.choice(sorted(self.own))
        kind = self.random.random()
        if kind < 0.4:
            spec["interfaceName"] = interface
        elif kind < 0.7:
            spec["expectedIPs"] = self.random.sample([*self.own[interface], NOBODYS], 2)
        else:
            spec["interfaceName"] = "*"
        if kind < 0.4 and self.random.random() < 0.5:  # what others' selectors see of it
            spec["expectedIPs"] = self.own[interface]
        return name, spec | ({"profiles": profiles} if profiles else {}), labels

    # -- policies -----------------------------------------------------------------------------------------------------

    def policy(self) -> tuple[str, str, str, dict[str, Any]]:
        """(kind, namespace, name, spec)."""
        kind, namespace = self.random.choice([("GlobalNetworkPolicy", ""), ("NetworkPolicy", "default")])
        stage = "own"
        if not namespace:
            stage = self.random.choices(["own", "forward", "preDNAT", "doNotTrack"], [40, 30, 15, 15])[0]
        types = self.random.choice([["Ingress"], ["Egress"], ["Ingress", "Egress"]])
        early = stage in ("preDNAT", "doNotTrack")
        if stage == "preDNAT":
            types = ["Ingress"]
        rules = {one.lower(): [self.rule(early) for _ in range(self.random.randint(0, 3))] for one in types}
        spec = {"tier": "default", "selector": self.random.choice(SELECTORS), "types": types, **rules}
        if stage != "own":
            spec["applyOnForward"] = True
        if early:
            spec[stage] = True
        order = self.random.choice([1, 2, 2, 3, None])
        if order is not None:
            spec["order"] = order
        return kind, namespace, f"default.p{self.random.randint(0, 15)}", spec

    def rule(self, early: bool) -> dict[str, Any]:
        """``early``: of a policy that comes before the one that allows the traffic; only about some ports."""
        made: dict[str, Any] = {"action": self.random.choice(["Allow", "Allow", "Deny", "Pass"])}
        for end in ("source", "destination"):
            entity: dict[str, Any] = {}
            if self.random.random() < 0.4:
                entity["selector"] = self.random.choice(SELECTORS)
            if self.random.random() < 0.2:
                entity["nets"] = [self.random.choice(NETS)]
            if end == "destination" and (early or self.random.random() < 0.6):
                made["protocol"] = "UDP"
                entity["ports"] = self.random.sample([*PORTS, NODE_PORT], 2)
            if entity:
                made[end] = entity
        return made
