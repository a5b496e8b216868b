"""PURE: do policies see the pods that use a service, or does kube-proxy give their connections the node's address?

Rule: kube-proxy masquerades what comes to a service from outside the networks that it takes for pods (its clusterCIDR).
A pool outside of them makes policies behind a service see a node instead of the pod. A setting that cannot be read says
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from cni_calico.model.resources import IPPool, Network

_CLUSTER_CIDR, _NODE_CIDR = "ClusterCIDR", "NodeCIDR"
_FLAGS = {
    "--cluster-cidr": "clusterCIDR",
    "--detect-local-mode": "detectLocalMode",
    "--masquerade-all": "masqueradeAll",
}


@dataclass(frozen=True, slots=True)
class ServiceSources:
    """What kube-proxy does not masquerade: ``networks``; ``masquerade_all``: nothing is left as it is.

    ``origin`` says where this was read. No networks of a family: it tells pods of that family by other means.
    """

    networks: tuple[Network, ...] = ()
    masquerade_all: bool = False
    by_node: bool = False  # each node's own pod CIDR, which Calico's blocks are not
    origin: str = ""


def parse_settings(document: Mapping[str, Any], origin: str) -> ServiceSources:
    """A KubeProxyConfiguration, as its ConfigMap has it."""
    mode = str(document.get("detectLocalMode") or _CLUSTER_CIDR)
    networks = parse_networks(str(document.get("clusterCIDR") or "")) if mode == _CLUSTER_CIDR else ()
    sections = [section for section in map(document.get, ("iptables", "nftables", "ipvs")) if isinstance(section, dict)]
    everything = any(section.get("masqueradeAll") is True for section in (document, *sections))
    return ServiceSources(networks, everything, mode == _NODE_CIDR, origin)


def parse_flags(arguments: Sequence[str]) -> dict[str, object]:
    """The same fields of a command line; {} with ``--config``, beside which kube-proxy ignores them."""
    found: dict[str, object] = {}
    words = [str(argument) for argument in arguments]
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--config":
            return {}
        if name in _FLAGS:
            following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else ""
            given = value if equals else following
            found[_FLAGS[name]] = given != "false" if name == "--masquerade-all" else given
    return found


def parse_networks(text: str) -> tuple[Network, ...]:
    """Of "10.244.0.0/16,fd00::/48"; what is no network is left out."""
    found = []
    for part in text.split(","):
        try:
            found.append(ip_network(part.strip(), strict=False))
        except ValueError:
            continue
    return tuple(found)


def masqueraded_pools(pools: Iterable[IPPool], sources: ServiceSources) -> list[IPPool]:
    """The pools whose pods' connections to services are masqueraded, although they are pods of this cluster."""
    return [pool for pool in pools if "Workload" in pool.allowed_uses and _is_masqueraded(pool.cidr, sources)]


def _is_masqueraded(cidr: Network, sources: ServiceSources) -> bool:
    if sources.masquerade_all or sources.by_node:
        return True
    known = [network for network in sources.networks if network.version == cidr.version]
    return bool(known) and not any(_contains(network, cidr) for network in known)


def _contains(network: Network, cidr: Network) -> bool:
    return network.prefixlen <= cidr.prefixlen and cidr.network_address in network


def render_masqueraded(pools: Sequence[IPPool], sources: ServiceSources) -> str:
    """What it means, and what to do; "" if there is no such pool."""
    if not pools:
        return ""
    names = ", ".join(f"{pool.metadata.name} ({pool.cidr})" for pool in pools)
    if sources.masquerade_all:
        how, remedy = "masquerades all connections to services (masqueradeAll)", "set masqueradeAll to false"
    elif sources.by_node:
        how = "takes only the node's own pod CIDR for pods (detectLocalMode NodeCIDR), which Calico's blocks are not"
        remedy = "set detectLocalMode to ClusterCIDR and clusterCIDR to a network that contains the pools"
    else:
        how = f"takes only {', '.join(map(str, sources.networks))} for pods"
        remedy = "set its clusterCIDR to a network that contains the pools"
    return (
        f"kube-proxy {how}: {sources.origin}. Outside is IPPool {names}: what its pods send to a service arrives with "
        f"the node's address, so policies behind the service see the node and not the pod, and may let pass what they "
        f"deny; {remedy} (ConfigMap kube-system/kube-proxy or its flags), and restart kube-proxy"
    )
