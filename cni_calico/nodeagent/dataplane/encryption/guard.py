"""PURE: what must not go between nodes in plain text where encryption is mandatory, and the table that drops it.

Rule: what is not known is guarded. Guarded is every address of a pool and of a block, except what this node's pods
have, the addresses of nodes, and what exempt nodes have. The table is ours, separate from everybody's, and made in one
transaction, so that there is no moment without it:

    postrouting   300   leaving    to a guarded address, through anything but WireGuard, workloads and lo: drop
    prerouting   -310   arriving   from a guarded address, through anything else: drop
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from cni_calico.daemon.settings_table import TRUE
from cni_calico.model.host import HostInterface
from cni_calico.model.resources import Network
from cni_calico.model.wireguard import DEVICE_KINDS
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encapsulation import endpoint_of
from cni_calico.nodeagent.dataplane.encryption.families import of_family
from cni_calico.nodeagent.view.snapshot import Snapshot

FAMILY, TABLE = "inet", "calico-encryption"
AddressRanges = tuple[tuple[int, int], ...]  # first and last address, as numbers; sorted, apart from one another


@dataclass(frozen=True, slots=True)
class DesiredGuard:
    """``guarded``: of IPv4 and of IPv6. ``devices``: WireGuard's, ``prefixes``: of workloads' interfaces.

    ``partial``: a record that this is made from cannot be read, so that what was guarded stays guarded.
    """

    devices: tuple[str, ...]
    prefixes: tuple[str, ...]
    guarded: tuple[AddressRanges, AddressRanges]
    partial: bool = False

    def with_former(self, former: DesiredGuard | None) -> DesiredGuard:
        """With what was guarded before, as long as not everything is known."""
        if not self.partial or former is None:
            return self
        both = (_merged((*old, *new)) for old, new in zip(former.guarded, self.guarded, strict=True))
        return DesiredGuard(self.devices, self.prefixes, (next(both), next(both)), partial=True)


def desired_guard(snapshot: Snapshot, interfaces: Iterable[HostInterface], felix: FelixSettings) -> DesiredGuard:
    """What has the name of a device of WireGuard's, and is none, is no way around."""
    others = {one.name for one in interfaces if one.kind not in DEVICE_KINDS}
    names = (of_family(felix, family).name for family in (4, 6))
    return DesiredGuard(
        devices=tuple(name for name in names if name not in others),
        prefixes=felix.interface_prefixes,
        guarded=(_guarded(snapshot, felix, 4), _guarded(snapshot, felix, 6)),
        partial=snapshot.incomplete,
    )


def describe_mandatory(snapshot: Snapshot, felix: FelixSettings) -> Iterator[str]:
    """What is odd about the setting: a value that is none, and each family of the pools that is cut between nodes."""
    if felix.wireguard_strict.lower() not in TRUE:
        yield f"wireguard-strict is {felix.wireguard_strict!r}, which counts as true"
    for family in (4, 6):
        if not of_family(felix, family).enabled and mandatory_networks(snapshot, family):
            yield (
                f"IPv{family} packets between pods of different nodes are dropped: encryption is mandatory, and it is "
                f"not enabled for IPv{family}"
            )


def mandatory_networks(snapshot: Snapshot, family: int) -> list[Network]:
    """All networks in which there may be pods of other nodes."""
    pools = [pool.cidr for pool in snapshot.pools if set(pool.allowed_uses) != {"LoadBalancer"}]
    networks = [*pools, *(block.cidr for block in snapshot.blocks)]
    return [network for network in networks if network.version == family]


def _guarded(snapshot: Snapshot, felix: FelixSettings, family: int) -> AddressRanges:
    free = {snapshot.node, *felix.wireguard_exempt}
    open_ranges: list[tuple[int, int]] = []
    closed = list(map(_range, mandatory_networks(snapshot, family)))
    for block in snapshot.blocks:
        if block.cidr.version != family:
            continue
        lent = {int(address): holder for address, holder in block.lent.items()}
        if block.node in free:
            others = [(number, number) for number, holder in lent.items() if holder not in free]
            open_ranges += subtract(_merged((_range(block.cidr),)), _merged(others))
        else:
            open_ranges += [(number, number) for number, holder in lent.items() if holder in free]
    workloads = (network for endpoint in snapshot.endpoints for network in endpoint.ip_networks)
    open_ranges += [_range(network) for network in workloads if network.version == family]
    ends = (endpoint_of(node, family) for node in snapshot.nodes.values())
    open_ranges += [(int(end.address), int(end.address)) for end in ends if end is not None]
    return subtract(_merged(closed), _merged(open_ranges))


def _range(network: Network) -> tuple[int, int]:
    return int(network.network_address), int(network.broadcast_address)


def _merged(ranges: Iterable[tuple[int, int]]) -> AddressRanges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


def subtract(ranges: AddressRanges, without: AddressRanges) -> AddressRanges:
    """What is in the first and not in the second; both are as AddressRanges says, and so is the result."""
    found: list[tuple[int, int]] = []
    at = 0
    for low, high in ranges:
        while at < len(without) and without[at][1] < low:
            at += 1
        index = at
        while index < len(without) and without[index][0] <= high:
            if without[index][0] > low:
                found.append((low, without[index][0] - 1))
            low = without[index][1] + 1
            index += 1
        if low <= high:
            found.append((low, high))
    return tuple(found)


def render_guard(guard: DesiredGuard | None) -> str:
    """The script for nft; None: the table goes."""
    lines = [f"add table {FAMILY} {TABLE}", f"delete table {FAMILY} {TABLE}"]
    if guard is None:
        return "\n".join(lines) + "\n"
    lines.append(f"table {FAMILY} {TABLE} {{")
    for family, ranges in zip((4, 6), guard.guarded, strict=True):
        lines += _set(family, ranges)
    for chain, hook, priority, way, side in (
        ("leaving", "postrouting", 300, "oifname", "daddr"),
        ("arriving", "prerouting", -310, "iifname", "saddr"),
    ):
        lines.append(f"  chain {chain} {{ type filter hook {hook} priority {priority}; policy accept;")
        names = ["lo", *guard.devices, *(f"{prefix}*" for prefix in guard.prefixes)]
        lines += [f'    {way} "{name}" accept' for name in names]
        lines += [f"    {kind} {side} @guarded{family} counter drop" for family, kind in ((4, "ip"), (6, "ip6"))]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _set(family: int, ranges: Sequence[tuple[int, int]]) -> list[str]:
    lines = [f"  set guarded{family} {{ type ipv{family}_addr; flags interval;"]
    if ranges:
        lines.append(f"    elements = {{ {', '.join(_text(family, low, high) for low, high in ranges)} }}")
    return [*lines, "  }"]


def _text(family: int, low: int, high: int) -> str:
    make = IPv4Address if family == 4 else IPv6Address
    return f"{make(low)}-{make(high)}" if low < high else str(make(low))
