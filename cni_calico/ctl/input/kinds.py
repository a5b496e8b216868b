"""PURE: how users may name the kinds of resources on the command line. Source: upstream's aliases."""

from __future__ import annotations

from cni_calico.ctl.input.nearest import did_you_mean
from cni_calico.errors import InvalidConfig
from cni_calico.model.keys import CLUSTER_KINDS, NAMESPACED_KINDS

_SHORT = {
    "Node": "no",
    "IPPool": "pool ipp",
    "IPReservation": "reservation",
    "BGPConfiguration": "bgpconfig",
    "BGPPeer": "bgpp",
    "BGPFilter": "bf bgpf",
    "FelixConfiguration": "felixconfig",
    "ClusterInformation": "clusterinfo",
    "GlobalNetworkPolicy": "gnp",
    "GlobalNetworkSet": "globalnetset gnetset",
    "HostEndpoint": "hep",
    "Profile": "pro",
    "Tier": "",
    "KubeControllersConfiguration": "kubecontrollersconfig",
    "CalicoNodeStatus": "nodestatus",
    "WorkloadEndpoint": "wep",
    "NetworkPolicy": "policy np pol",
    "NetworkSet": "netset",
    "StagedGlobalNetworkPolicy": "sgnp",
    "StagedKubernetesNetworkPolicy": "stagedkubernetespolicy sknp skpol",
    "StagedNetworkPolicy": "stagedpolicy snp spol",
}


def _plural(name: str) -> str:
    if name.endswith("y"):
        return name[:-1] + "ies"
    return name + ("es" if name.endswith("s") else "s")


def _aliases() -> dict[str, str]:
    names: dict[str, str] = {}
    for kind in (*CLUSTER_KINDS, *NAMESPACED_KINDS):
        for name in (kind.lower(), *_SHORT[kind].split()):
            names[name] = names[_plural(name)] = kind
    return names


ALIASES = _aliases()


def parse_kind(text: str) -> str:
    """The kind that a user means. Raises InvalidConfig."""
    kind = ALIASES.get(text.lower())
    if kind is None:
        known = ", ".join(sorted({*CLUSTER_KINDS, *NAMESPACED_KINDS}, key=str.lower))
        near = did_you_mean(text, ALIASES)
        raise InvalidConfig(
            f"cannot find resource type {text!r}: it is not supported", details=f"{near} known are {known}".lstrip()
        )
    return kind
