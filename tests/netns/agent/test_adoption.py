"""A node that upstream's agent kept: what it left in the packet filter goes, its network is adopted as it is."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyroute2 import IPSet

from cni_calico.daemon.doorbell import ring_bell
from cni_calico.directories import FORWARD_BELL
from cni_calico.kernel.filter.ipsets import read_ipsets
from cni_calico.nodeagent.dataplane.encapsulation import derived_mac
from tests.deadlines import SOON, until
from tests.netns.agent.test_loop import MADE, POOLS, make_store, on_workload, routes
from tests.netns.agents import Store, running
from tests.netns.namespaces import Namespace
from tests.unit.nodeagent.fabric import NODES, workload

pytestmark = pytest.mark.netns


def _make_set(name: str) -> None:
    with IPSet() as sets:
        sets.create(name)


def test_upstreams_leftovers(host_n1: Namespace, tmp_path: Path) -> None:
    for command in (
        "iptables-nft -N cali-FORWARD",
        "iptables-nft -A FORWARD -j cali-FORWARD",
        "iptables-nft -A cali-FORWARD -j DROP",
        "nft add table ip6 calico",
        "nft add chain ip6 calico cali-FORWARD",
        "ip route add 10.65.1.5 dev calia scope link metric 1024",
        "iptables-nft -P FORWARD DROP",
    ):
        host_n1.run(*command.split())
    host_n1.call(_make_set, "cali40masq-ipam-pools")
    with running(host_n1, make_store(tmp_path / "store.db"), "n1", tmp_path / "n1"):
        rules = host_n1.run("iptables-nft-save").stdout
        assert "cali-" not in rules.replace("cni-calico", "")
        assert "-A FORWARD -i cali+" in rules and "-A FORWARD -o cali+" in rules
        assert "cali-FORWARD" not in host_n1.run("nft", "list", "ruleset").stdout
        assert "10.65.1.5" in on_workload(host_n1)
        assert host_n1.call(read_ipsets, SOON) == []

        assert [e.get("metric") for e in host_n1.ip("route", "show", "dev", "calia")] == [1024]  # is as ours

        # of legacy iptables the kernel tells nobody: calico-docker does
        host_n1.run("iptables-legacy", "-P", "FORWARD", "DROP")
        assert ring_bell(str(tmp_path / "n1" / "run" / FORWARD_BELL))
        until(lambda: "-i cali+" in host_n1.run("iptables-legacy-save").stdout, "the agent looks at once")


UPSTREAMS_NETWORK = """
link add vxlan.calico type vxlan id 4096 dstport 4789 local 10.0.0.1 dev eth0 nolearning
link set vxlan.calico address 66:0a:0b:0c:0d:0e mtu 1450 up
addr add 10.65.1.0/32 dev vxlan.calico
neigh add 10.65.2.0 lladdr {n2} dev vxlan.calico nud permanent
neigh add 10.65.3.0 lladdr {n3} dev vxlan.calico nud permanent
route add blackhole 10.65.1.0/26 proto 80
route add 10.65.2.0/26 via 10.0.0.2 dev eth0 proto 80
route add 10.65.3.0/26 via 10.65.3.0 dev vxlan.calico onlink proto 80
route add 10.65.1.5 dev calia scope link metric 1024
"""


@contextmanager
def removals(host: Namespace) -> Iterator[list[str]]:
    """What is deleted from the kernel during the block, in the words of ``ip monitor``."""
    argv = ["nsenter", f"--net={host.path}", "ip", "monitor", "link", "address", "route", "neigh"]
    gone: list[str] = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        host.do("route", "add", "192.0.2.1", "dev", "eth0")
        monitor.stdout.readline()  # it listens
        yield gone
        host.do("route", "del", "192.0.2.1", "dev", "eth0")
        for line in monitor.stdout:
            if line.startswith("Deleted"):
                if "192.0.2.1 " in line:
                    break
                gone.append(line.removeprefix("Deleted ").strip())
        monitor.kill()


def pod_metrics(host: Namespace) -> list[int | None]:
    return [e.get("metric") for e in host.ip("route", "show", "dev", "calia") if e["dst"] == "10.65.1.5"]


def test_a_route_without_a_metric_makes_way_once_ours_is_there(host_n1: Namespace, tmp_path: Path) -> None:
    """That of the CNI plugin, or of an older agent; another priority is the same. The pod always has a route."""
    store = make_store(tmp_path / "store.db")
    host_n1.do("route", "add", "10.65.1.5", "dev", "calia", "scope", "link")
    with removals(host_n1) as gone, running(host_n1, store, "n1", tmp_path / "n1"):
        assert 1024 in pod_metrics(host_n1)
        until(lambda: pod_metrics(host_n1) == [1024], "the other one is gone", 60)
    assert len(gone) == 1 and gone[0].startswith("10.65.1.5 dev calia") and "metric" not in gone[0]
    settings = {"FELIX_IPV4NORMALROUTEPRIORITY": "700"}
    with running(host_n1, store, "n1", tmp_path / "n1", **settings):
        until(lambda: pod_metrics(host_n1) == [700], "the new priority", 60)


def test_upstreams_network_is_adopted_without_a_gap(host_n1: Namespace, tmp_path: Path) -> None:
    """Devices, routes and neighbours as upstream's agent leaves them: all of it stays."""
    store = Store(tmp_path / "upstream.db")
    own = replace(NODES["n1"], vxlan_tunnel_mac="66:0a:0b:0c:0d:0e")
    store.put(own, NODES["n2"], NODES["n3"], POOLS[0], workload("w", "calia", "10.65.1.5/32"))
    for number in (1, 2, 3):
        store.put_block(f"10.65.{number}.0/26", f"n{number}")
    macs = {name: derived_mac(name, 4) for name in ("n2", "n3")}
    for command in UPSTREAMS_NETWORK.format(**macs).strip().splitlines():
        host_n1.do(*command.split())
    for name, remote in (("n2", "10.0.0.2"), ("n3", "10.0.9.3")):
        host_n1.run(*f"bridge fdb add {macs[name]} dev vxlan.calico dst {remote} self permanent".split())
    before = host_n1.link("vxlan.calico")

    with removals(host_n1) as gone, running(host_n1, store, "n1", tmp_path / "n1"):
        pass
    assert gone == []
    assert pod_metrics(host_n1) == [1024]
    assert host_n1.link("vxlan.calico") == before
    assert routes(host_n1) == {dst: route for dst, route in MADE.items() if dst.startswith("10.")}


OLDER = "0123456789abcdef0123456789abcdef01234567"  # of a network that only the plugin knew


def test_interfaces_of_pods_are_signed(host_n1: Namespace, tmp_path: Path) -> None:
    """Once, at the start: those of recorded endpoints that carry their addresses, and no others."""
    store, container = Store(tmp_path / "store.db"), "c1" * 32
    store.put(NODES["n1"], POOLS[0])
    cases = {  # interface: (address it has, address recorded, alias before)
        "calione": ("10.65.1.1", "10.65.1.1", ""),
        "calisandbox": ("10.65.1.2", "10.65.1.3", ""),
        "caliadmin": ("10.65.1.4", "10.65.1.4", "an administrator's"),
        "calinobody": ("10.65.1.5", "", ""),
        "caliolder": ("10.65.1.6", "10.65.1.6", f"cni-calico:{OLDER}"),
        "caliolderother": ("10.65.1.7", "10.65.1.8", f"cni-calico:{OLDER}"),
    }
    for i, (name, (address, recorded, alias)) in enumerate(cases.items()):
        host_n1.do("link", "add", name, "type", "veth", "peer", "name", f"peer{i}")
        host_n1.do("link", "set", name, "up", "alias", alias)
        host_n1.do("route", "add", address, "dev", name, "scope", "link")
        if recorded:
            store.put(replace(workload(f"w{i}", name, f"{recorded}/32"), container_id=container, pod=f"w{i}"))
    with running(host_n1, store, "n1", tmp_path / "n1"):
        until(lambda: "ifalias" in (host_n1.link("calione") or {}), "it is signed", 20)
        aliases = {name: (host_n1.link(name) or {}).get("ifalias", "") for name in cases}
    digest = hashlib.sha1(f"/{container}/eth0".encode()).hexdigest()
    expected = {
        "calione": f"cni-calico/2:{digest}/k8s/default/w0",
        "caliadmin": "an administrator's",
        "caliolder": f"cni-calico/2:{OLDER}/k8s/default/w4",
        "caliolderother": f"cni-calico:{OLDER}",
    }
    assert {name: alias for name, alias in aliases.items() if alias} == expected
