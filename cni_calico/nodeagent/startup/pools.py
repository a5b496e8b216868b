"""PURE: the default pools that the first node of a cluster creates.

Rule: a pool of a family is planned only if the cluster has none of that family; everything about it was validated
before. Source: upstream's documentation of CALICO_IPV4POOL_*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import new_metadata
from cni_calico.model.resources import Address, IPPool, Network
from cni_calico.nodeagent.context.settings import NodeSettings

NAMES = {4: "default-ipv4-ippool", 6: "default-ipv6-ippool"}
PREFERRED = IPv4Network("192.168.0.0/16")
ALTERNATIVES = tuple(IPv4Network(f"172.{second}.0.0/16") for second in range(16, 32))
_POD_SUBNET = re.compile(r"^[ \t]*podSubnet:[ \t]*(\S.*?)[ \t]*(?:[ \t]#.*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """``families`` have a pool already; ``pod_subnets`` are kubeadm's; ``host_addresses`` those of all interfaces."""

    families: frozenset[int] = frozenset()
    pod_subnets: tuple[Network, ...] = ()
    host_addresses: Sequence[Address] = ()
    ipv6_possible: bool = True


def parse_pod_subnets(cluster_configuration: str) -> tuple[Network, ...]:
    """The pod networks in kubeadm's ClusterConfiguration (YAML text), at most one per family.

    Raises ValueError for a podSubnet that is not a list of networks.
    """
    match = _POD_SUBNET.search(cluster_configuration)
    if match is None:
        return ()
    found: dict[int, Network] = {}
    for part in match.group(1).strip("\"'").split(","):
        if part.strip():
            network = ip_network(part.strip(), strict=False)
            found.setdefault(network.version, network)
    return tuple(found.values())


def plan_pools(
    settings: NodeSettings, facts: PoolFacts, *, random: bytes, uids: Sequence[str], now: str
) -> list[IPPool]:
    """The pools to create; ``random`` (5 bytes) makes the unique local prefix. Raises InvalidConfig."""
    if settings.no_default_pools:
        return []
    pools = []
    for family, uid in zip((4, 6), uids, strict=True):
        if family in facts.families or (family == 6 and not facts.ipv6_possible):
            continue
        cidr = _choose_cidr(settings, family, facts, random)
        if cidr is not None:
            pools.append(_pool(settings, family, cidr, uid, now))
    return pools


def _choose_cidr(settings: NodeSettings, family: int, facts: PoolFacts, random: bytes) -> Network | None:
    asked = settings.v4_cidr if family == 4 else settings.v6_cidr
    if isinstance(asked, str):
        return None
    if asked is not None:
        return asked
    for subnet in facts.pod_subnets:
        if subnet.version == family:
            return _fitting(subnet, settings.v4_block_size if family == 4 else settings.v6_block_size)
    return choose_free_range(facts.host_addresses) if family == 4 else unique_local(random)


def _fitting(subnet: Network, block_size: int) -> Network:
    if subnet.prefixlen > block_size:
        raise InvalidConfig(
            f"cannot make the default pool: kubeadm's podSubnet {subnet} is smaller than one block (/{block_size})",
            details=f"set CALICO_IPV{subnet.version}POOL_BLOCK_SIZE, or CALICO_IPV{subnet.version}POOL_CIDR",
        )
    return subnet


def choose_free_range(host_addresses: Iterable[Address]) -> IPv4Network:
    """The first of the usual ranges that contains no address of this host; the preferred one if all do."""
    addresses = [address for address in host_addresses if address.version == 4]
    for candidate in (PREFERRED, *ALTERNATIVES):
        if not any(address in candidate for address in addresses):
            return candidate
    return PREFERRED


def unique_local(random: bytes) -> IPv6Network:
    """A /48 of fd00::/8 (RFC 4193) from five random bytes."""
    return IPv6Network((b"\xfd" + random[:5] + bytes(10), 48))


def _pool(settings: NodeSettings, family: int, cidr: Network, uid: str, now: str) -> IPPool:
    v4 = family == 4
    return IPPool(
        metadata=new_metadata(NAMES[family], uid=uid, now=now),
        cidr=cidr,
        block_size=settings.v4_block_size if v4 else settings.v6_block_size,
        node_selector=settings.v4_selector if v4 else settings.v6_selector,
        ipip_mode=settings.v4_ipip if v4 else "Never",
        vxlan_mode=settings.v4_vxlan if v4 else settings.v6_vxlan,
        nat_outgoing=settings.v4_nat if v4 else settings.v6_nat,
        disable_bgp_export=settings.v4_no_export if v4 else settings.v6_no_export,
    )
