"""A set has the members that it was told, in both families, whatever their prefixes, and while it changes."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.alp.address_sets import SyncedSet

NETS = [
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.0/24",
    "10.1.2.3/32",
    "10.1.2.4",
    "0.0.0.0/0",
    "fd00::/8",
    "fd00::1/128",
    "::/0",
]
ADDRESSES = [
    ip_address(text) for text in ("10.1.2.3", "10.1.2.4", "10.9.9.9", "192.0.2.1", "fd00::1", "fd00::2", "2001:db8::1")
]


@given(st.lists(st.tuples(st.sets(st.sampled_from(NETS)), st.sets(st.sampled_from(NETS))), max_size=6))
def test_networks(changes: list[tuple[set[str], set[str]]]) -> None:
    found, model = SyncedSet(has_ports=False), set()
    for removed, added in changes:
        found.change(removed, added)
        model = (model - removed) | added
        for address in ADDRESSES:
            assert found.holds(address) is any(address in ip_network(net) for net in model)


def test_ports() -> None:
    found = SyncedSet(has_ports=True)
    found.change((), ["10.0.0.1,tcp:80", "fd00::1,udp:53", "10.0.0.2/32,132:9"])
    asked = [("10.0.0.1", 6, 80), ("fd00::1", 17, 53), ("10.0.0.2", 132, 9), ("10.0.0.1", 17, 80), ("10.0.0.1", 6, 81)]
    assert [found.holds_port(ip_address(a), protocol, port) for a, protocol, port in asked] == [True] * 3 + [False] * 2
    found.change(["10.0.0.1,tcp:80"], [])
    assert not found.holds_port(ip_address("10.0.0.1"), 6, 80)


@pytest.mark.parametrize("has_ports", [True, False])
@pytest.mark.parametrize(
    "member", ["", "x", "10.0.0.1/33", "10.0.0.300", "10.0.0.1,tcp", "10.0.0.1,none:1", "fd00::/129"]
)
def test_what_is_no_member_changes_nothing(member: str, has_ports: bool) -> None:
    good = "10.0.0.1,tcp:80" if has_ports else "10.0.0.1/32"
    found = SyncedSet(has_ports=has_ports)
    found.change((), [good])
    with pytest.raises(ValueError, match=r"."):
        found.change([good], [member])
    assert found.holds_port(ip_address("10.0.0.1"), 6, 80) if has_ports else found.holds(ip_address("10.0.0.1"))
