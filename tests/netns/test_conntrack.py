"""Connections of one address are removed, and nobody else's; both ways in which kernels can do it."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.conntrack import remove_entries, remove_listed, remove_translated
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general
from cni_calico.kernel.netlink.tracked import is_tracked
from tests.netns.namespaces import Namespace, namespace

pytestmark = pytest.mark.netns

RULES = """table inet t {
  chain c { type filter hook output priority 0; ct state new counter; }
  chain n { type nat hook output priority -100; ip daddr 10.9.9.9 dnat ip to 10.0.0.2; }
}
"""


def _sources() -> list[str]:
    """The original and the reply source of every entry, by the kernel's list."""
    found = []
    with Nfnetlink() as netlink:
        for family, size, kind in (("ip", 4, 1), ("ip6", 16, 3)):
            for payload in netlink.dump(1 << 8 | 1, general(family), "list", Deadline.after(5)):
                attributes = wire.attributes(payload, GENERAL_BYTES)
                sources = []
                for side in (1, 2):
                    ip = wire.attributes(wire.attributes(attributes[side])[1])
                    assert len(ip[kind]) == size
                    sources.append(str(ip_address(ip[kind])))
                found.append(">".join(sources))
    return sorted(found)


def _talk() -> None:
    """One UDP packet on each connection."""
    pairs = [("10.0.0.1", "10.0.0.2"), ("10.0.0.3", "10.0.0.2"), ("10.0.0.1", "10.9.9.9"), ("10.0.0.3", "10.0.0.1")]
    pairs += [("fd00::1", "fd00::2"), ("fd00::1", "fd00::3"), ("fd00::3", "fd00::2")]
    for source, destination in pairs:
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.bind((source, 4000 + ip_address(destination).packed[-1]))
            s.sendto(b"x", (destination, 53))


def _prepare(ns: Namespace) -> None:
    for address in ("10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24"):
        ns.do("addr", "add", address, "dev", "lo")
    ns.do("addr", "add", "10.9.9.9/32", "dev", "lo")
    for address in ("fd00::1/64", "fd00::2/64", "fd00::3/64"):
        ns.do("addr", "add", address, "dev", "lo", "nodad")
    ns.run("sh", "-c", f"nft -f - <<'E'\n{RULES}\nE")
    ns.call(_talk)


def _remove(address: str, one_by_one: bool) -> None:
    before = _sources()
    with Nfnetlink() as netlink:
        packed = ip_address(address).packed
        if one_by_one:
            remove_listed(netlink, [packed], Deadline.after(5))
        elif not remove_entries(netlink, packed, Deadline.after(5)):
            assert len(packed) == 16  # no kernel is asked: it would remove everybody else's
            assert _sources() == before
            remove_listed(netlink, [packed], Deadline.after(5))


ALL = [
    "10.0.0.1>10.0.0.2",
    "10.0.0.1>10.0.0.2",  # translated
    "10.0.0.3>10.0.0.1",
    "10.0.0.3>10.0.0.2",
    "fd00::1>fd00::2",
    "fd00::1>fd00::3",
    "fd00::3>fd00::2",
]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_exactly_one_address(one_by_one: bool) -> None:
    with namespace("ct") as ns:
        _prepare(ns)
        assert ns.call(_sources) == ALL
        ns.call(_remove, "10.0.0.77", one_by_one)
        assert ns.call(_sources) == ALL
        ns.call(_remove, "10.0.0.1", one_by_one)
        assert ns.call(_sources) == [ALL[3], *ALL[4:]]
        ns.call(_remove, "fd00::2", one_by_one)
        assert ns.call(_sources) == [ALL[3], "fd00::1>fd00::3"]  # what others have among themselves stays


def test_many_addresses_in_one_list() -> None:
    """And of those that have an owner by the time the list is there, nothing."""
    with namespace("ct") as ns:
        _prepare(ns)
        ns.call(_remove_many, ("10.0.0.1", "10.0.0.3", "fd00::3"), "10.0.0.1")
        assert ns.call(_sources) == [ALL[0], ALL[1], "fd00::1>fd00::2"]  # what it had with one that is gone is gone


def _remove_many(addresses: tuple[str, ...], owned: str) -> None:
    packed = [ip_address(address).packed for address in addresses]
    with Nfnetlink() as netlink:
        remove_listed(netlink, packed, Deadline.after(5), lambda address: address != ip_address(owned).packed)


def test_what_was_translated_for_an_address() -> None:
    """Not what else goes to where it led."""
    with namespace("ct") as ns:
        _prepare(ns)
        ns.call(_remove_translated, "10.9.9.9", "fd00::3", "10.0.0.77")
        assert ns.call(_sources) == [ALL[0], *ALL[2:5], ALL[6]]


def _remove_translated(*addresses: str) -> None:
    with Nfnetlink() as netlink:
        remove_translated(netlink, [ip_address(address).packed for address in addresses], Deadline.after(5))


def test_no_address() -> None:
    with namespace("ct") as ns:
        _prepare(ns)
        with pytest.raises(KernelError, match="not an address"):
            ns.call(_remove_nothing)
        assert ns.call(_sources) == ALL


def _remove_nothing() -> None:
    with Nfnetlink() as netlink:
        remove_entries(netlink, b"", Deadline.after(5))


def _fail(when: str) -> str:
    faults.install(faults.FaultPlan(f"conntrack.remove:{when}:1:fail"))
    try:
        _remove("10.0.0.3", False)
    except KernelError as e:
        return str(e)
    finally:
        faults.install(None)
    return ""


@pytest.mark.parametrize(
    ("when", "left"), [("before", ALL), ("after", [e for e in ALL if not e.startswith("10.0.0.3")])]
)
def test_a_failure_is_told_and_doing_it_again_is_success(when: str, left: list[str]) -> None:
    with namespace("conntrack") as ns:
        _prepare(ns)
        assert ns.call(_fail, when).startswith("cannot remove connection tracking entries")
        assert ns.call(_sources) == sorted(left)
        ns.call(_remove, "10.0.0.3", False)
        assert not [entry for entry in ns.call(_sources) if entry.startswith("10.0.0.3")]


@pytest.mark.parametrize(("own", "other"), [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")])
def test_whether_a_connection_is_known(own: str, other: str) -> None:
    with namespace("ct") as ns:
        _prepare(ns)
        assert ns.call(_known_before_and_after, own, other) == [(True, True, False), (False, False, False)]


def _known_before_and_after(own: str, other: str) -> list[tuple[bool, ...]]:
    """Seen from each of its ends, and with another port; then without its entries."""
    with (
        socket.create_server((other, 2379), family=socket.AF_INET6 if ":" in own else socket.AF_INET) as listening,
        socket.create_connection((other, 2379), source_address=(own, 40000)),
        listening.accept()[0],
        Nfnetlink() as netlink,
    ):
        here, there = ip_address(own).packed, ip_address(other).packed
        asked = [(here, 40000, there, 2379), (there, 2379, here, 40000), (here, 40001, there, 2379)]
        before = tuple(is_tracked(netlink, ends, Deadline.after(5)) for ends in asked)
        remove_listed(netlink, [here], Deadline.after(5))
        return [before, tuple(is_tracked(netlink, ends, Deadline.after(5)) for ends in asked)]
