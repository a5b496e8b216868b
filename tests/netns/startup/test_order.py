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
def one_card_host(tmp_path: Path) -> Iterator[Host]:
    with namespace("one") as ns:
        add_card(ns, "eth0", "192.168.7.5/24")
        yield Host(ns, tmp_path, tmp_path / "store.db", environ={"NODENAME": "n1", "IP": "autodetect"})


def test_the_first_start_writes_everything_and_the_second_nothing(one_card_host: Host) -> None:
    first = one_card_host.start(CLUSTER_TYPE="bgp")
    assert set(first.changed) == FIRST
    assert one_card_host.nodename_file.read_bytes() == b"n1"
    assert one_card_host.nodename_file.stat().st_mode & 0o777 == 0o644
    assert all((one_card_host.root / name).is_dir() for name in ("run", "lib", "log"))
    stored, written = one_card_host.stored(), one_card_host.nodename_file.stat().st_mtime_ns
    second = one_card_host.start(CLUSTER_TYPE="bgp")
    assert second.changed == ()
    assert one_card_host.stored() == stored
    assert one_card_host.nodename_file.stat().st_mtime_ns == written


def test_what_a_new_cluster_holds(one_card_host: Host) -> None:
    one_card_host.start(CLUSTER_TYPE="k8s,bgp")
    stored = one_card_host.stored()
    assert stored["clusterinformations/default"]["spec"]["clusterType"] == "k8s,bgp"
    assert stored["felixconfigurations/default"]["spec"] == {"logSeverityScreen": "Info", "reportingInterval": "0s"}
    assert stored["felixconfigurations/node.n1"]["spec"] == {"defaultEndpointToHostAction": "Return"}
    # 192.168.0.0/16 holds the host's own address
    assert stored["ippools/default-ipv4-ippool"]["spec"]["cidr"] == "172.16.0.0/16"
    assert stored["ippools/default-ipv6-ippool"]["spec"]["cidr"].endswith("::/48")


def test_pools_as_asked_for(one_card_host: Host) -> None:
    one_card_host.start(
        CALICO_IPV4POOL_CIDR="10.65.0.0/16",
        CALICO_IPV4POOL_VXLAN="CrossSubnet",
        CALICO_IPV4POOL_BLOCK_SIZE="28",
        CALICO_IPV4POOL_NODE_SELECTOR="has(rack)",
        CALICO_IPV4POOL_DISABLE_BGP_EXPORT="true",
        CALICO_IPV6POOL_CIDR="none",
    )
    assert "ippools/default-ipv6-ippool" not in one_card_host.stored()
    assert one_card_host.stored()["ippools/default-ipv4-ippool"]["spec"] == {
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


def test_kubeadm_and_rancher(one_card_host: Host) -> None:
    one_card_host.facts = KubernetesFacts(kubeadm="networking:\n  podSubnet: 10.244.0.0/16\n", rancher=True)
    one_card_host.start(CLUSTER_TYPE="k8s")
    assert one_card_host.stored()["clusterinformations/default"]["spec"]["clusterType"] == "k8s,kubeadm,rancher"
    assert one_card_host.stored()["ippools/default-ipv4-ippool"]["spec"]["cidr"] == "10.244.0.0/16"


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
def test_wrong_input_writes_nothing(one_card_host: Host, environ: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        one_card_host.start(**environ)
    assert one_card_host.stored() == {}
    assert not one_card_host.nodename_file.exists()


def test_an_own_record_of_the_wrong_shape_is_named_and_left(one_card_host: Host) -> None:
    wrong = {"metadata": {"name": "n1"}, "spec": {"bgp": {"ipv4Address": ["10.0.0.1"]}}}
    one_card_host.put(ResourceKey("Node", "n1"), wrong)
    with pytest.raises(CorruptRecord, match="Node n1"):
        one_card_host.start()
    assert one_card_host.stored() == {"nodes/n1": wrong}


def test_others_records_of_the_wrong_shape_do_not_stop_us(one_card_host: Host) -> None:
    one_card_host.put(ResourceKey("Node", "bad"), {"metadata": {"name": "bad"}, "spec": {"bgp": 7}})
    one_card_host.put(ResourceKey("IPPool", "bad"), {"metadata": {"name": "bad"}, "spec": {"cidr": "ten"}})
    outcome = one_card_host.start()
    assert sum("Node bad" in line or "IPPool bad" in line for line in outcome.log) == 2
    assert not any(name.startswith("IPPool") for name in outcome.changed)  # nobody knows what the bad one covers


@pytest.mark.parametrize("environ", [{}, {"NODENAME": ""}, {"NODENAME": "", "HOSTNAME": "Host-B"}])
def test_the_node_name(one_card_host: Host, environ: dict[str, str]) -> None:
    expected = environ.get("HOSTNAME", "n1" if not environ else os.uname().nodename).lower()
    assert one_card_host.start(**environ).node == expected
    assert one_card_host.start(NODENAME="", HOSTNAME="other").node == expected  # the file wins over HOSTNAME


def test_killed_anywhere_the_next_start_finishes(one_card_host: Host) -> None:
    """The file system and the datastore are written to at points; each in turn is the last thing a start does."""
    points = ("local.commit:before", "local.commit:after", "file.write:after", "file.rename:before")
    for point in points:
        for nth in range(1, 12):
            fresh = Host(
                one_card_host.ns,
                one_card_host.root / f"{point}{nth}",
                one_card_host.root / f"{point}{nth}.db",
                environ=one_card_host.environ,
            )
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


def test_two_nodes_starting_together_make_one_cluster(one_card_host: Host) -> None:
    with namespace("two") as ns:
        add_card(ns, "eth0", "192.168.7.6/24")
        other = Host(
            ns, one_card_host.root / "n2", one_card_host.datastore, environ={"NODENAME": "n2", "IP": "autodetect"}
        )
        one_card_host.start()
        before = one_card_host.stored()["clusterinformations/default"]
        outcome = other.start()
    assert set(outcome.changed) == {"Node n2", "FelixConfiguration node.n2"}
    assert json.dumps(one_card_host.stored()["clusterinformations/default"]) == json.dumps(before)
