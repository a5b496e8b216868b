"""What fields of one record have to do with one another, as CEL expressions of the definitions: (expression, message).

Rule: what calicoctl refuses (cni_calico/model/validation) and upstream's definitions refuse, too; nothing that any
version of either writes. Selectors, networks and what concerns several records can only be checked by who reads them.
"""

from __future__ import annotations

from cni_calico.model.documents.tiers import TIERS

Rules = tuple[tuple[str, str], ...]


def given(field: str) -> str:
    return f"(has(self.{field}) && self.{field} != '')"


def filled(field: str) -> str:
    return f"(has(self.{field}) && size(self.{field}) > 0)"


def true(field: str) -> str:
    return f"(has(self.{field}) && self.{field})"


def not_both(one: str, other: str) -> tuple[str, str]:
    return f"!({given(one)} && {given(other)})", f"{one} and {other} cannot both be given"


_TUNNELS = " || ".join(
    f"(has(self.{mode}) && self.{mode} in ['Always', 'CrossSubnet'])" for mode in ("ipipMode", "vxlanMode")
)
_FOR_SERVICES = "(has(self.allowedUses) && 'LoadBalancer' in self.allowedUses)"
POOL: Rules = (
    (f"!{_FOR_SERVICES} || size(self.allowedUses) == 1", "LoadBalancer cannot be combined with other uses"),
    (f"!{_FOR_SERVICES} || !({_TUNNELS})", "a pool of load balancer addresses has no encapsulation"),
)
HOST_ENDPOINT: Rules = (
    (given("node"), "node must be given"),
    (f"{given('interfaceName')} || {filled('expectedIPs')}", "either interfaceName or expectedIPs must be given"),
)
_AS = "(has(self.asNumber) && self.asNumber != 0)"
BGP_PEER: Rules = (
    not_both("node", "nodeSelector"),
    not_both("peerIP", "peerSelector"),
    (f"!({given('peerSelector')} && {_AS})", "peerSelector and asNumber cannot both be given"),
    not_both("localWorkloadSelector", "peerIP"),
    not_both("localWorkloadSelector", "peerSelector"),
    (f"!{given('localWorkloadSelector')} || {_AS}", "asNumber must be given together with localWorkloadSelector"),
)
FILTER_RULE: Rules = (
    ("has(self.cidr) == has(self.matchOperator)", "cidr and matchOperator belong together"),
    ("!has(self.prefixLength) || has(self.cidr)", "prefixLength has no meaning without cidr"),
    (f"!{filled('operations')} || self.action == 'Accept'", "operations can only be given with action Accept"),
)
_MESH = " || ".join(f"has(self.{field})" for field in ("nodeMeshPassword", "nodeMeshMaxRestartTime"))
BGP_CONFIGURATION: Rules = (
    (
        f"!(has(self.nodeToNodeMeshEnabled) && !self.nodeToNodeMeshEnabled) || !({_MESH})",
        "nodeMeshPassword and nodeMeshMaxRestartTime have no meaning while nodeToNodeMeshEnabled is false",
    ),
)
GLOBAL_POLICY: Rules = (
    (f"!({true('doNotTrack')} && {true('preDNAT')})", "preDNAT cannot be given together with doNotTrack"),
    (
        f"!{true('preDNAT')} || !({filled('egress')} || (has(self.types) && 'Egress' in self.types))",
        "a policy with preDNAT has no egress: it concerns incoming packets",
    ),
    (
        f"!({true('doNotTrack')} || {true('preDNAT')}) || {true('applyOnForward')}",
        "applyOnForward must be true where doNotTrack or preDNAT is",
    ),
)
_PROTOCOL = "(has(self.protocol) && (self.protocol == 'TCP' || self.protocol == 6))"
RULE: Rules = (
    (f"!has(self.http) || (self.action == 'Allow' && {_PROTOCOL})", "http needs action Allow and protocol TCP"),
)
PEER: Rules = (
    (
        f"!has(self.services) || !({filled('ports')} || {filled('notPorts')})",
        "ports cannot be given together with services, which have their own",
    ),
)
ICMP: Rules = (("!has(self.code) || has(self.type)", "code has no meaning without type"),)
FELIX: Rules = (
    (
        "!(has(self.routeTableRange) && has(self.routeTableRanges))",
        "routeTableRange is the older form of routeTableRanges",
    ),
)
# of whole objects, which know their names
FELIX_OBJECT: Rules = (
    (
        "!(has(self.spec) && has(self.spec.nodeSelector) && self.spec.nodeSelector != '')"
        " || !(self.metadata.name == 'default' || self.metadata.name.startsWith('node.'))",
        "nodeSelector cannot be given in FelixConfigurations default and node.*",
    ),
)
TIER_OBJECT: Rules = tuple(
    (
        f"self.metadata.name != '{name}' || (has(self.spec) && has(self.spec.defaultAction)"
        f" && self.spec.defaultAction == '{action}')",
        f"the defaultAction of tier {name} is {action}",
    )
    for name, (_, action) in TIERS.items()
)
