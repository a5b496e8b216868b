"""``calicoctl cluster check`` looks on the wire whether what it sends to another node can be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.cluster.connectivity import objects
from cni_calico.ctl.cluster.connectivity.encrypted import read_encrypted
from cni_calico.ctl.cluster.connectivity.findings import OK, Trial, TrialPlan, render_plan
from cni_calico.ctl.cluster.connectivity.inside import ANSWERING, Progress
from cni_calico.ctl.cluster.connectivity.pod_namespace import CheckNamespace, PodPlace
from cni_calico.ctl.cluster.connectivity.wire_pods import WirePods
from cni_calico.ctl.session import Session
from cni_calico.datastore.local.store import LocalStore
from tests.deadlines import soon, until
from tests.e2e import front
from tests.netns.encrypted import EncryptedPair, encrypted_pair
from tests.netns.nodes import ROOT, Node
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.takes(20)]
PROVEN = ("IPv4 encryption", "IPv4 encryption from this host")


def network(node: Node) -> Path:
    """A network as a runtime reads it."""
    plugin = {
        "type": "calico",
        **node.store.conf(),
        "nodename_file": f"{node.root}/lib/nodename",
        "log_file_path": f"{node.root}/cni.log",
        "ipam_lock_file": f"{node.root}/run/ipam.lock",
        "ipam": {"type": "calico-ipam"},
    }
    path = node.root / "10-calico.conflist"
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": "calnet", "plugins": [plugin]}))
    return path


def check(pair: EncryptedPair, name: str) -> dict[str, tuple[str, str]]:
    """{what was tried: (outcome, sentence)}"""
    node = pair.nodes[name]
    where = ["--network", str(network(node)), "--plugins", str(front.executables()), "-o", "json"]
    done: subprocess.CompletedProcess[str] = node.calicoctl("cluster", "check", "--host", *where, check=False)
    return {one["what"]: (one["outcome"], one["text"]) for one in json.loads(done.stdout)["findings"]}


class Kubelets(CheckNamespace):
    """In the place of the API server and kubelets: what a pod is to run runs, in its pod's or its node's network."""

    def __init__(self, pair: EncryptedPair, directory: Path, undo: ExitStack) -> None:
        self.pair, self.directory, self.undo = pair, directory, undo

    def create_pod(self, document: Mapping[str, Any]) -> None:
        spec, name = document["spec"], document["metadata"]["name"]
        node = spec["nodeName"]
        ns = self.pair.nodes[node].ns if spec.get("hostNetwork") else self.pair.pods[node].ns
        (container,) = spec["containers"]
        argv = ["nsenter", f"--net={ns.path}", sys.executable, "-m", "cni_calico.ctl.main", *container["command"][1:]]
        with open(self.directory / f"{name}.log", "w") as log:
            process = subprocess.Popen(argv, cwd=ROOT, stdout=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        self.undo.callback(process.wait)
        self.undo.callback(process.kill)

    def await_pod(self, name: str, is_far_enough: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        until(lambda: (self.directory / f"{name}.log").exists(), f"pod {name}")
        return {}

    def log(self, pod: str) -> str:
        return (self.directory / f"{pod}.log").read_text()

    def pause(self, doing: str) -> None:
        soon().require(doing)


def between_pods(pair: EncryptedPair, directory: Path) -> list[Trial]:
    """As the check tries it in a cluster."""
    directory.mkdir()
    store = LocalStore(str(pair.store.path))
    encrypted = read_encrypted(Session(store, soon(), now=str, uid=str))
    store.close()
    assert encrypted is not None
    with ExitStack() as undo:
        kubelets = Kubelets(pair, directory, undo)
        kubelets.create_pod(objects.pod(objects.SERVER, "n2", "image", ANSWERING))
        client, server = (PodPlace(name, "image") for name in ("n1", "n2"))
        addresses = list(pair.pods["n2"].addresses)
        wires = WirePods(kubelets, encrypted, client, server, addresses)
        assert not list(wires.start())
        plan = render_plan(TrialPlan(addresses, policed=False, tokens=wires.tokens))
        kubelets.create_pod(objects.pod(objects.CLIENT, "n1", "image", plan))
        until(lambda: Progress(kubelets.log(objects.CLIENT)).is_done, "the pod that tries is done", 60)
        return list(wires.judge(Progress(kubelets.log(objects.CLIENT)).exchanged))


def test_what_a_host_reads_on_its_wires(tmp_path: Path) -> None:
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),)) as pair:
        pair.enable()
        pair.until_encrypted()
        found = check(pair, "n1")
        for what in PROVEN:
            assert found[what] == ("ok", "n1 to n2: 20 packets, none readable")
        assert "IPv4 encryption is mandatory" not in found

        pair.nodes["n1"].stop()
        pair.nodes["n1"].ns.do("route", "flush", "table", "1")  # nobody repairs it
        outcome, said = check(pair, "n1")["IPv4 encryption"]
        assert outcome == "failed" and "packets can be read on eth0" in said and said.startswith("n1 to n2: ")


@pytest.mark.slow
def test_what_is_read_between_two_pods(tmp_path: Path) -> None:
    """As in a cluster, and by the host itself where encryption is mandatory."""
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),)) as pair:
        pair.enable()
        pair.until_encrypted()
        said = "n1 to n2: 40 packets, none readable"
        names = ("IPv4 encryption", "IPv4 encryption from a host")
        assert between_pods(pair, tmp_path / "pods") == [Trial(name, OK, said) for name in names]

        pair.nodes["n1"].stop()
        pair.nodes["n1"].ns.do("route", "flush", "table", "1")
        plain = between_pods(pair, tmp_path / "plain")
        assert "packets can be read on eth0, vxlan.calico of n2" in plain[0].text

        pair.nodes["n1"].more["CALICO_WIREGUARD_STRICT"] = "true"
        pair.nodes["n1"].run().until_applied()
        pair.until_encrypted()
        until(lambda: pair.pods["n1"].can_ping(pair.pods["n2"]), "the pods reach one another", 60, pause_s=0.2)
        found = check(pair, "n1")
        assert [found[what][0] for what in PROVEN] == ["ok", "ok"]
        assert found["IPv4 encryption is mandatory"] == ("ok", "nothing goes to 10.65.255.255, which no node holds")
