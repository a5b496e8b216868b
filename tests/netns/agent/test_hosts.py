"""Three hosts with etcd and no Kubernetes: ``cluster check`` from one to the others, ``cluster diags`` here."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import front
from tests.netns.bird.cluster import make_lab
from tests.netns.namespaces import Namespace
from tests.netns.node_cluster import Cluster, start_cluster
from tests.netns.nodes import ROOT, Node
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.etcd, pytest.mark.takes(60)]


@pytest.fixture(scope="module")
def three_hosts(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Iterator[Cluster]:
    """n1 and n2 are in one subnet and need no tunnel, n3 is behind a router."""
    directory = tmp_path_factory.mktemp("hosts")
    with make_lab(directory) as lab:
        pools = (pool("10.65.0.0/16", vxlan="CrossSubnet"),)
        environ = {"CALICO_NETWORKING_BACKEND": "vxlan", "IP6": "none"}
        yield start_cluster(lab, directory, pools, ipv6=False, bin_dir=bundle, **environ)


def check(node: Node, *more: str) -> tuple[int, dict[str, tuple[str, str]], str]:
    """(exit status, {what was tried: (outcome, sentence)}, standard error)"""
    network = node.root / "10-calico.conflist"
    plugin = {
        "type": "calico",
        **node.store.conf(),
        "nodename_file": f"{node.root}/lib/nodename",
        "log_file_path": f"{node.root}/cni.log",
        "ipam_lock_file": f"{node.root}/run/ipam.lock",
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true"},
    }
    network.write_text(json.dumps({"cniVersion": "1.0.0", "name": "calnet", "plugins": [plugin]}))
    argv = [sys.executable, "-m", "cni_calico.ctl.main", "cluster", "check", "-o", "json", "--network", str(network)]
    done = subprocess.run(
        ["nsenter", f"--net={node.ns.path}", *argv, "--plugins", str(front.executables()), *more],
        cwd=ROOT,
        env=node.environ(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    found = {
        each["what"]: (each["outcome"], each["text"])
        for each in json.loads(done.stdout or '{"findings": []}')["findings"]
    }
    return done.returncode, found, done.stderr


def drop(router: Namespace, *what: str) -> None:
    """Packets that the router between the subnets does not forward; none: all pass."""
    rule = f"add rule inet broken forward {' '.join(what)} drop\n" if what else ""
    script = f"""add table inet broken
add chain inet broken forward {{ type filter hook forward priority 0; }}
flush chain inet broken forward
{rule}"""
    subprocess.run(["nsenter", f"--net={router.path}", "nft", "-f", "-"], input=script, text=True, check=True)


def test_from_host_to_host(three_hosts: Cluster) -> None:
    """By the way that containers take, whatever policies say; and what does not get through is told."""
    code, found, err = check(three_hosts.nodes["n1"])
    near, far = found["IPv4 to host n2"], found["IPv4 to host n3"]
    assert (near[0], far[0], code, err) == ("ok", "ok", 0, "")
    for name, text in (("n2", near[1]), ("n3", far[1])):
        [address] = three_hosts.pods[f"{name}-a"].addresses
        assert text.startswith(f"{address} is behind ") and "directly" in text and "packets of 1450 bytes pass" in text
    drop(three_hosts.router, "udp", "dport", "4789", "udp", "length", ">", "1000")
    _, found, err = check(three_hosts.nodes["n1"], "--nodes", "n3")
    assert "IPv4 to host n2" not in found and "host n3" in err
    assert found["IPv4 to host n3"][0] == "failed" and "packets of 1450 bytes are not" in found["IPv4 to host n3"][1]
    drop(three_hosts.router, "udp", "dport", "4789")
    code, found, err = check(three_hosts.nodes["n1"])
    assert (found["IPv4 to host n2"][0], found["IPv4 to host n3"][0], code) == ("ok", "failed", 1)
    assert "whether VXLAN (UDP 4789)" in found["IPv4 to host n3"][1] and "IPv4 to host n3" in err
    drop(three_hosts.router)
    code, _, err = check(three_hosts.nodes["n1"], "--nodes", "n9")
    assert code == 1 and "there is no node n9" in err


def test_the_archive_has_this_host(three_hosts: Cluster, tmp_path: Path) -> None:
    """Status, rules and the journal, beside the records of all."""
    archive = tmp_path / "all.tar.gz"
    three_hosts.nodes["n1"].calicoctl("cluster", "diags", "-o", str(archive))
    with tarfile.open(archive) as opened:
        texts = {
            member.name.partition("/")[2]: file.read().decode(errors="replace")
            for member in opened.getmembers()
            if (file := opened.extractfile(member)) is not None
        }
    host = next(name.partition("/")[0] for name in texts if name.startswith("host-"))
    assert "Calico process is running" in texts[f"{host}/status"]
    assert "table ip calico" in texts[f"{host}/network/nftables"] and "vxlan.calico" in texts[f"{host}/network/links"]
    for name in ("logs/journal", "network/routes-v4", "network/iptables-v4"):
        assert f"{host}/{name}" in texts, sorted(texts)
    assert any("bird" in name for name in texts if name.startswith(host)), sorted(texts)
    assert "n3" in texts["resources/nodes.yaml"] and "calicoctl node diags" in texts["hosts"]
