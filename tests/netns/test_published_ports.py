"""What translates on this host: read where it can be, named where it cannot."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from cni_calico.ctl.policy.published import look_here
from cni_calico.ctl.session import Session
from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.published_ports import read_nat
from cni_calico.netfilter.nat import NatConnection, Translation
from cni_calico.policy.explain import Packet
from tests.fakes.memory_store import MemoryStore
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

OTHERS = """
table inet netavark {
  chain PREROUTING { type nat hook prerouting priority -100; tcp dport 8080 dnat ip to 10.88.0.2:80; }
}
table ip kube-proxy {
  chain out { type nat hook output priority -100; }
}
table ip own {
  chain post { type nat hook postrouting priority 100; masquerade; }
}
"""
TO_HOST = NatConnection(ip_address("203.0.113.9"), ip_address("192.0.2.10"), 6, 8080, is_local=True, from_host=False)


def read(version: int) -> tuple[list[Translation | None], tuple[str, ...]]:
    seen = read_nat(version, Deadline.after(30))
    return [table.translate(TO_HOST)[0] for table in seen.tables], seen.unread


def test_tables_that_are_not_read_are_named(host_ns: Namespace) -> None:
    assert host_ns.call(read, 4)[1] == () == host_ns.call(read, 6)[1]
    host_ns.run("sh", "-c", f"nft -f - <<'E'\n{OTHERS}\nE")
    assert host_ns.call(read, 4)[1] == ("nftables, table inet netavark", "nftables, table ip kube-proxy")
    assert host_ns.call(read, 6)[1] == ("nftables, table inet netavark",)


def test_iptables_is_read_and_a_table_nat_of_others_is_named(host_ns: Namespace) -> None:
    rule = "-p tcp --dport 8080 -j DNAT --to-destination 10.65.0.2:80"
    host_ns.run("iptables-nft", "-t", "nat", "-A", "PREROUTING", *rule.split())
    found, unread = host_ns.call(read, 4)
    assert Translation(ip_address("10.65.0.2"), 80) in found and unread == ()
    host_ns.run("nft", "add chain ip nat mine { type nat hook prerouting priority -101; }")
    found, unread = host_ns.call(read, 4)
    assert Translation(ip_address("10.65.0.2"), 80) in found and unread == ("nftables, table ip nat",)


def explain() -> tuple[str, list[str]]:
    """What is said first of where it was judged from, and the warnings."""
    warned: list[str] = []
    session = Session(MemoryStore(), Deadline.after(30), str, str)
    packet = Packet(TO_HOST.source, TO_HOST.destination, 6, destination_port=TO_HOST.port)
    seen = look_here(session, packet, lambda text: warned.append(str(text)))
    return seen.judged_from[0], warned


def test_that_nothing_translates_is_said_only_if_everything_is_read(host_ns: Namespace) -> None:
    text, warned = host_ns.call(explain)
    assert text.endswith(": nothing translates 192.0.2.10:8080") and warned == []
    host_ns.run("iptables-nft", "-t", "nat", "-A", "PREROUTING", *["-p", "tcp", "--dport", "8080", "-j", "REDIRECT"])
    text, warned = host_ns.call(explain)
    assert text.endswith(": nothing that is read and understood translates 192.0.2.10:8080")
    assert len(warned) == 1 and "may translate 192.0.2.10:8080, and cannot be judged: -A PREROUTING" in warned[0]
    host_ns.run("iptables-nft", "-t", "nat", "-F")
    host_ns.run("sh", "-c", f"nft -f - <<'E'\n{OTHERS}\nE")
    text, warned = host_ns.call(explain)
    assert text.endswith(": nothing that is read and understood translates 192.0.2.10:8080")
    assert warned[0] == (
        "rules of this host that are not read may translate 192.0.2.10:8080: nftables, table inet netavark"
    )
