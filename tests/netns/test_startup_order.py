"""Start-up as a whole: what it writes, in which order, that it writes it once, and that it survives being ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.errors import CorruptRecord, InvalidConfig
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.kubernetes import KubernetesFacts
from tests.netns.namespaces import Killed, namespace
from tests.netns.startups import Host, add_card

pytestmark = pytest.mark.netns

FIRST = {
    "Node n1",
    "IPPool default-ipv4-ippool",
    "IPPool default-ipv6-ippool",
    "Tier default",
    "Tier kube-admin",
    "Tier kube-baseline",
    "ClusterInformation default",
    "FelixConfiguration default",
    "FelixConfiguration node.n1",
    "BGPConfiguration default",
}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with namespace("one") as ns:
        add_card(ns, "eth0", "192.168.7.5/24")
        yield Host(ns, tmp_path, tmp_path / "store.db", environ={"NODENAME": "n1", "IP": "autodetect"})


def test_the_first_start_writes_everything_and_the_second_nothing(host: Host) -> None:
    first = host.start(CLUSTER_TYPE="bgp")
    assert set(first.changed) == FIRST
    assert host.nodename_file.read_bytes() == b"n1"
    assert host.nodename_file.stat().st_mode & 0o777 == 0o644
    assert all((host.root / name).is_dir() for name in ("run", "lib", "log"))
    stored, written = host.stored(), host.nodename_file.stat().st_mtime_ns
    second = host.start(CLUSTER_TYPE="bgp")
    assert second.changed == ()
    assert host.stored() == stored
    assert host.nodename_file.stat().st_mtime_ns == written


def test_what_a_new_cluster_holds(host: Host) -> None:
    host.start(CLUSTER_TYPE="k8s,bgp")
    stored = host.stored()
    assert stored["clusterinformations/default"]["spec"]["clusterType"] == "k8s,bgp"
    assert stored["felixconfigurations/default"]["spec"] == {"logSeverityScreen": "Info", "reportingInterval": "0s"}
    assert stored["felixconfigurations/node.n1"]["spec"] == {"defaultEndpointToHostAction": "Return"}
    # 192.168.0.0/16 holds the host's own address
    assert stored["ippools/default-ipv4-ippool"]["spec"]["cidr"] == "172.16.0.0/16"
    assert stored["ippools/default-ipv6-ippool"]["spec"]["cidr"].endswith("::/48")


def test_pools_as_asked_for(host: Host) -> None:
    host.start(
        CALICO_IPV4POOL_CIDR="10.65.0.0/16",
        CALICO_IPV4POOL_VXLAN="CrossSubnet",
        CALICO_IPV4POOL_BLOCK_SIZE="28",
        CALICO_IPV4POOL_NODE_SELECTOR="has(rack)",
        CALICO_IPV4POOL_DISABLE_BGP_EXPORT="true",
        CALICO_IPV6POOL_CIDR="none",
    )
    assert "ippools/default-ipv6-ippool" not in host.stored()
    assert host.stored()["ippools/default-ipv4-ippool"]["spec"] == {
        "cidr": "10.65.0.0/16",
        "vxlanMode": "CrossSubnet",
        "ipipMode": "Never",
        "natOutgoing": True,
        "disableBGPExport": True,
        "blockSize": 28,
        "nodeSelector": "has(rack)",
        "allowedUses": ["Workload", "Tunnel"],
        "assignmentMode": "Automatic",
    }


def test_kubeadm_and_rancher(host: Host) -> None:
    host.facts = KubernetesFacts(kubeadm="networking:\n  podSubnet: 10.244.0.0/16\n", rancher=True)
    host.start(CLUSTER_TYPE="k8s")
    assert host.stored()["clusterinformations/default"]["spec"]["clusterType"] == "k8s,kubeadm,rancher"
    assert host.stored()["ippools/default-ipv4-ippool"]["spec"]["cidr"] == "10.244.0.0/16"


@pytest.mark.parametrize(
    "environ",
    [
        {"CALICO_IPV4POOL_BLOCK_SIZE": "33"},
        {"NO_DEFAULT_POOLS": "true", "CALICO_IPV4POOL_CIDR": "10.0.0.0/16"},
        {"CALICO_IPV4POOL_IPIP": "Always", "CALICO_IPV4POOL_VXLAN": "Always"},
        {"AS": "high"},
        {"NODENAME": "a/b"},
    ],
)
def test_wrong_input_writes_nothing(host: Host, environ: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        host.start(**environ)
    assert host.stored() == {}
    assert not host.nodename_file.exists()


def test_an_own_record_of_the_wrong_shape_is_named_and_left(host: Host) -> None:
    wrong = {"metadata": {"name": "n1"}, "spec": {"bgp": {"ipv4Address": ["10.0.0.1"]}}}
    host.put(ResourceKey("Node", "n1"), wrong)
    with pytest.raises(CorruptRecord, match="Node n1"):
        host.start()
    assert host.stored() == {"nodes/n1": wrong}


def test_others_records_of_the_wrong_shape_do_not_stop_us(host: Host) -> None:
    host.put(ResourceKey("Node", "bad"), {"metadata": {"name": "bad"}, "spec": {"bgp": 7}})
    host.put(ResourceKey("IPPool", "bad"), {"metadata": {"name": "bad"}, "spec": {"cidr": "ten"}})
    outcome = host.start()
    assert sum("Node bad" in line or "IPPool bad" in line for line in outcome.log) == 2
    assert not any(name.startswith("IPPool") for name in outcome.changed)  # nobody knows what the bad one covers


@pytest.mark.parametrize("environ", [{}, {"NODENAME": ""}, {"NODENAME": "", "HOSTNAME": "Host-B"}])
def test_the_node_name(host: Host, environ: dict[str, str]) -> None:
    expected = environ.get("HOSTNAME", "n1" if not environ else os.uname().nodename).lower()
    assert host.start(**environ).node == expected
    assert host.start(NODENAME="", HOSTNAME="other").node == expected  # the file wins over HOSTNAME


def test_killed_anywhere_the_next_start_finishes(host: Host) -> None:
    """The file system and the datastore are written to at points; each in turn is the last thing a start does."""
    points = ("local.commit:before", "local.commit:after", "file.write:after", "file.rename:before")
    for point in points:
        for nth in range(1, 12):
            fresh = Host(host.ns, host.root / f"{point}{nth}", host.root / f"{point}{nth}.db", environ=host.environ)
            fresh.root.mkdir()
            try:
                fresh.start(fault=f"{point}:{nth}:kill")
            except Killed:
                pass
            else:
                break
            name_written = fresh.nodename_file.exists()
            fresh.start()
            assert not name_written
            assert {path.split("/")[0] for path in fresh.stored()} >= {"nodes", "ippools", "clusterinformations"}
            assert fresh.nodename_file.read_text() == "n1"
            assert fresh.start().changed == ()


def test_two_nodes_starting_together_make_one_cluster(host: Host) -> None:
    with namespace("two") as ns:
        add_card(ns, "eth0", "192.168.7.6/24")
        other = Host(ns, host.root / "n2", host.datastore, environ={"NODENAME": "n2", "IP": "autodetect"})
        host.start()
        before = host.stored()["clusterinformations/default"]
        outcome = other.start()
    assert set(outcome.changed) == {"Node n2", "FelixConfiguration node.n2"}
    assert json.dumps(host.stored()["clusterinformations/default"]) == json.dumps(before)
