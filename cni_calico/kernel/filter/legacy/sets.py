"""PURE: the sets of one family's table as IP sets, and what ``ipset save`` says of them.

Rule: members are bytes as in nf_tables, so that it does not matter how ipset writes them. Lists of ports, and maps, are
part of rules (rules.py, layout.py), not IP sets. The network of all addresses is written as two halves, because ipset
has no prefix of length 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network, summarize_address_range

from cni_calico.kernel.filter.legacy.matches import FAMILY, PROTOCOLS_WITH_PORTS
from cni_calico.kernel.filter.legacy.names import SETS, SPARE_SET, set_name
from cni_calico.netfilter.tables import NftSet, NftTable

_ADDRESS = {"ipv4_addr": 4, "ipv6_addr": 16}
_MOST = 1 << 24  # members; memory is only used for those that there are
_NUMBERS = {name: number for number, name in PROTOCOLS_WITH_PORTS.items()}
_SWAP_FROM = 64  # changes; below that, members are added and removed one by one


@dataclass(slots=True)
class IpSet:
    """``kind``: hash:ip, hash:net, or hash:ip,port."""

    kind: str
    family: int
    members: set[bytes] = field(default_factory=set)

    def create(self, name: str) -> str:
        return f"create {name} {self.kind} family inet{'' if self.family == 4 else '6'} maxelem {_MOST}"


def kind_of(spec: NftSet) -> str:
    """The kind of the IP set; "" if it does not become one."""
    if spec.verdicts or spec.key[0] not in _ADDRESS:
        return ""
    if len(spec.key) == 3:
        return "hash:ip,port"
    return "hash:net" if spec.interval else "hash:ip"


def sets_of(table: NftTable) -> dict[str, NftSet]:
    """The sets that become IP sets, by the names of those."""
    family = FAMILY[table.family]
    return {set_name(name, family): spec for name, spec in table.sets.items() if kind_of(spec)}


def members_of(spec: NftSet, elements: Iterable[bytes]) -> set[bytes]:
    """The members as an IP set has them."""
    return {half for e in elements for half in _halves(e)} if spec.interval else set(elements)


def _halves(element: bytes) -> tuple[bytes, ...]:
    size = len(element) // 2
    if any(element[:size]) or element[size:] != b"\xff" * size:
        return (element,)
    low, high = b"\x7f" + b"\xff" * (size - 1), b"\x80" + bytes(size - 1)
    return (element[:size] + low, high + element[size:])


# -- as ipset writes and reads them -----------------------------------------------------------------------------------


def written(kind: str, member: bytes) -> str:
    if kind == "hash:ip":
        return str(ip_address(member))
    if kind == "hash:net":
        size = len(member) // 2
        (network,) = summarize_address_range(ip_address(member[:size]), ip_address(member[size:]))
        return str(network)
    size = len(member) - 8
    protocol, port = member[size], int.from_bytes(member[size + 4 : size + 6], "big")
    return f"{ip_address(member[:size])},{PROTOCOLS_WITH_PORTS.get(protocol, protocol)}:{port}"


def parse_member(kind: str, text: str) -> bytes:
    """Raises ValueError."""
    if kind == "hash:ip":
        return ip_address(text).packed
    if kind == "hash:net":
        network = ip_network(text)
        return network.network_address.packed + network.broadcast_address.packed
    address, _, rest = text.partition(",")
    name, _, port = rest.partition(":")
    protocol = _NUMBERS[name] if name in _NUMBERS else int(name)
    return ip_address(address).packed + bytes((protocol, 0, 0, 0)) + int(port).to_bytes(2, "big") + b"\0\0"


def parse_sets(saved: str) -> dict[str, IpSet]:
    """Ours, from the output of ``ipset save``; one that is not as ours are has no kind."""
    found: dict[str, IpSet] = {}
    ours = tuple(SETS.values()) + tuple(SPARE_SET.values())
    for line in saved.splitlines():
        words = line.split()
        if len(words) < 3 or not words[1].startswith(ours):
            continue
        if words[0] == "create":
            given = dict(zip(words[3::2], words[4::2], strict=False))
            plain = not set(words) & {"timeout", "comment", "counters", "skbinfo", "netmask", "markmask"}
            family = 6 if given.get("family") == "inet6" else 4
            found[words[1]] = IpSet(words[2] if plain else "", family)
        elif words[0] == "add" and words[1] in found:
            one = found[words[1]]
            try:
                one.members.add(parse_member(one.kind, words[2]))
            except (ValueError, KeyError):
                one.kind = ""
    return found


# -- changes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetLine:
    """A line for ``ipset restore``; ``name``: the set that it is about."""

    text: str
    name: str


def change_set(name: str, wanted: IpSet, held: IpSet | None) -> Iterator[SetLine]:
    """Lines that make it hold what is wanted. A large change replaces the content at once, by swapping."""
    if held is None:
        yield SetLine(wanted.create(name), name)
        yield from _added(name, name, wanted.kind, wanted.members)
        return
    added, removed = wanted.members - held.members, held.members - wanted.members
    large = len(added) + len(removed) >= max(_SWAP_FROM, len(wanted.members) // 2)
    if held.kind != wanted.kind or (removed and large):
        spare = SPARE_SET[wanted.family]
        yield SetLine(wanted.create(spare), name)
        yield SetLine(f"flush {spare}", name)
        yield from _added(spare, name, wanted.kind, wanted.members)
        yield SetLine(f"swap {spare} {name}", name)
        yield SetLine(f"destroy {spare}", name)
        return
    yield from _added(name, name, wanted.kind, added)
    yield from (SetLine(f"del {name} {written(wanted.kind, one)}", name) for one in sorted(removed))


def _added(to: str, name: str, kind: str, members: Iterable[bytes]) -> Iterator[SetLine]:
    for one in sorted(members):
        yield SetLine(f"add {to} {written(kind, one)}", name)
