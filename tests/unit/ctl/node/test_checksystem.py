"""What ``node checksystem`` says of hosts that lack one thing each."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from cni_calico.ctl.node import checksystem
from cni_calico.ctl.node.asked import select_asked
from cni_calico.ctl.node.checksystem import FEATURES, is_new_enough, module_names, parse_kernel_config
from cni_calico.model.keys import ResourceKey

SYSTEM = "System doesn't meet one or more minimum systems requirements to run Calico"
ALL = {option for feature in FEATURES for option in feature.options}
NEEDED = {"veth": ["CONFIG_VETH"], "connection tracking": ["CONFIG_NF_CONNTRACK"]}
NEEDED["packet filter"] = ["CONFIG_NF_TABLES", "CONFIG_IP_NF_IPTABLES"]
SOMETIMES = {
    "NAT": ("CONFIG_NF_NAT", "pools with natOutgoing"),
    "ipip": ("CONFIG_NET_IPIP", "pools with ipipMode"),
    "vxlan": ("CONFIG_VXLAN", "pools with vxlanMode"),
    "wireguard": ("CONFIG_WIREGUARD", "encryption"),
    "sctp": ("CONFIG_NF_CT_PROTO_SCTP", "policies with SCTP"),
}


@pytest.fixture
def check(calicoctl, tmp_path, monkeypatch):
    """Calls it for a kernel with these options, on a host with these programs; {what: state} and the exit status."""
    monkeypatch.setattr(checksystem, "_SEARCH", (str(tmp_path / "bin"),))
    (tmp_path / "bin").mkdir()

    def call(options=ALL, *, programs=("nft", "bird"), release="6.1.0-18-amd64"):
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
        (tmp_path / "config").write_text("".join(f"{option}={'ym'[i % 2]}\n" for i, option in enumerate(options)))
        for path in (tmp_path / "bin").iterdir():
            path.unlink()
        for name in programs:
            (tmp_path / "bin" / name).touch(0o755)
        done = calicoctl("node", "checksystem", "-f", str(tmp_path / "config"))
        rows = dict(line.split(":", 1) for line in done.out.splitlines() if ":" in line)
        assert (SYSTEM in done.err) == (done.code != 0) == ("System meets" not in done.out)
        return {what: state.strip() for what, state in rows.items()}, done.code

    return call


def test_a_host_that_has_all(check):
    rows, code = check()
    assert code == 0 and set(rows.values()) == {"OK"}
    named = {feature.name for feature in FEATURES}
    basics = {"kernel 6.1.0-18-amd64 >= 5.10", "IPv4 forwarding", "IPv6", "network namespaces"}
    assert rows.keys() == {*named, *basics, "packet filter program", "BIRD"}


@pytest.mark.parametrize("what", NEEDED)
def test_what_every_node_needs(check, what):
    rows, code = check(ALL - set(NEEDED[what]))
    assert code == 1 and {name for name, state in rows.items() if state != "OK"} == {what} and rows[what] == "FAIL"
    for option in NEEDED[what]:  # one of them is enough
        assert check(ALL - set(NEEDED[what]) | {option})[1] == 0


@pytest.mark.parametrize("what", SOMETIMES)
def test_what_only_some_clusters_need(check, what):
    option, purpose = SOMETIMES[what]
    rows, code = check(ALL - {option})
    assert code == 0
    assert {name: state for name, state in rows.items() if state != "OK"} == {
        what: f"missing, only needed for {purpose}"
    }


SELECT = {"selector": "all()", "types": ["Ingress"]}
ASKING = {
    "ipip": ("IPPool", {"cidr": "10.65.0.0/16", "ipipMode": "CrossSubnet"}),
    "vxlan": ("IPPool", {"cidr": "10.65.0.0/16", "vxlanMode": "Always"}),
    "NAT": ("IPPool", {"cidr": "10.65.0.0/16", "natOutgoing": True}),
    "wireguard": ("FelixConfiguration", {"wireguardEnabledV6": True}),
    "sctp": ("GlobalNetworkPolicy", {**SELECT, "ingress": [{"action": "Allow", "protocol": "SCTP"}]}),
}


@pytest.mark.parametrize("what", ASKING)
def test_what_a_record_asks_for_has_to_be_there(check, calicoctl, what):
    kind, spec = ASKING[what]
    option, _ = SOMETIMES[what]
    manifest = {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": "default"}, "spec": spec}
    calicoctl.ok("apply", "-f", "-", stdin=json.dumps(manifest))
    assert check()[1] == 0
    rows, code = check(ALL - {option})
    assert code == 1
    wrong = {name: state for name, state in rows.items() if state != "OK"}
    assert wrong == {what: f"FAIL, needed for {kind}(default)"}


def test_what_kubernetes_policies_ask_for():
    port = {"protocol": "SCTP", "port": 5000}
    documents = [
        (ResourceKey("KubernetesNetworkPolicy", name, "shop"), {"spec": {"ingress": [{"ports": [port]}]}})
        for name in "abcde"
    ]
    more = (ResourceKey("NetworkPolicy", "x", "shop"), {"spec": {"egress": [{"protocol": 132}]}})
    odd = [(ResourceKey("IPPool", "odd"), spec) for spec in ({}, {"spec": None}, {"spec": {"ipipMode": "Never"}})]
    named = [f"KubernetesNetworkPolicy(shop/{name})" for name in "abc"]
    assert select_asked([*documents, more, *odd]) == {"sctp": ", ".join(named) + " and 3 more"}


def test_without_a_datastore_features_are_listed(check, calicoctl, tmp_path):
    """And it is said that nothing was asked."""
    assert check(ALL - {"CONFIG_NET_IPIP"})[1] == 0
    done = calicoctl("node", "checksystem", "-f", str(tmp_path / "config"))
    assert done.code == 0 and "What is configured could not be looked at" in done.err


def test_kube_proxys_mode_ipvs_is_seen(check, monkeypatch):
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path == checksystem.IPVS_INTERFACE or exists(path))
    rows, code = check()
    assert code == 0 and rows["ip_vs"].startswith("kube-proxy runs in mode ipvs, which needs nftables in the agent")


@pytest.mark.parametrize(
    ("programs", "lacking"),
    [
        (("iptables", "bird"), {}),
        (("bird",), {"packet filter program": "masquerading and policy"}),
        (("nft",), {"BIRD": "BGP (CALICO_NETWORKING_BACKEND=bird)"}),
    ],
)
def test_programs(check, programs, lacking):
    rows, code = check(programs=programs)
    assert code == 0
    assert {name: state for name, state in rows.items() if state != "OK"} == {
        name: f"missing, only needed for {purpose}" for name, purpose in lacking.items()
    }


@pytest.mark.parametrize(
    ("missing", "what", "state", "code"),
    [
        ("/proc/sys/net/ipv4/ip_forward", "IPv4 forwarding", "FAIL", 1),
        ("/proc/sys/net/ipv6/conf/all/forwarding", "IPv6", "missing, only needed for IPv6 pools", 0),
        ("/proc/self/ns/net", "network namespaces", "FAIL", 1),
    ],
)
def test_what_the_kernel_does_not_offer(check, monkeypatch, missing, what, state, code):
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != missing and exists(path))
    rows, found = check()
    assert found == code
    assert {name: said for name, said in rows.items() if said != "OK"} == {what: state}


def test_a_kernel_that_is_too_old(check):
    rows, code = check(release="4.18.0-553.el8.x86_64")
    assert code == 1 and rows["kernel 4.18.0-553.el8.x86_64 >= 5.10"] == "FAIL"


def test_a_configuration_that_cannot_be_read(calicoctl, tmp_path):
    assert f"cannot read kernel configuration {tmp_path}/none" in calicoctl.fails(
        "node", "checksystem", "-f", f"{tmp_path}/none"
    )


@pytest.mark.parametrize(
    ("release", "new"),
    [("5.10.0", True), ("5.9.20", False), ("5.15", True), ("3.10.0-1160.el7", False), ("10.0.1", True), ("", False)],
)
def test_releases(release, new):
    assert is_new_enough(release) == new


def test_what_the_kernel_says():
    assert parse_kernel_config("CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\nCONFIG_D=n\nCONFIG_E=64\n") == {
        "CONFIG_A",
        "CONFIG_C",
    }
    lines = ["kernel/net/ipv4/ipip.ko.xz: kernel/net/ipv4/ip_tunnel.ko.xz", "kernel/drivers/net/nf-x.ko:", "alias"]
    assert list(module_names(lines)) == ["ipip", "nf_x"]


@pytest.mark.parametrize(("release", "code"), [("6.1.0", 0), ("4.9.0", 1)])
def test_as_a_document(check, calicoctl, tmp_path, release, code):
    assert check(release=release)[1] == code
    done = calicoctl("node", "checksystem", "-f", str(tmp_path / "config"), "-o", "json")
    document = json.loads(done.out)
    assert done.code == code and document["meetsRequirements"] == (code == 0)
    rows = {row["name"]: row for row in document["checks"]}
    assert rows[f"kernel {release} >= 5.10"] == {
        "name": f"kernel {release} >= 5.10",
        "found": code == 0,
        "neededFor": "every node",
    }
    assert rows["BIRD"]["neededFor"] == "BGP (CALICO_NETWORKING_BACKEND=bird)"
    assert calicoctl("node", "checksystem", "-o", "xml").code == 1
