"""``calicoctl flows`` of two nodes, through a real API server and its exec, from the recorders' own servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.services import SERVICES, NamedServices
from cni_calico.log import SILENT
from cni_calico.nodeagent.recording.elsewhere import services
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.fakes.kubelet import Kubelet
from tests.fakes.recorder import ScriptedRecorder, address, end_of_tier, flow, pod, rule

NODES = ("worker-1", "worker-2")
WEB, DB = ("shop", "web-7d9", "10.65.0.9"), ("shop", "db-0", "10.65.1.9")


@dataclass
class TwoNodes:
    kube: Cluster
    kubelet: Kubelet
    recorders: list[ScriptedRecorder]

    def flows(self, *words: str, token: str = "admin-token") -> int:
        return run(["flows", *words, "--kubeconfig", self.kube.kubeconfig(token)], dict(os.environ))


@pytest.fixture
def flow_nodes(kube: Cluster, tmp_path: Path) -> Iterator[TwoNodes]:
    with ExitStack() as opened:
        kubelet = Kubelet(kube.directory / "server.crt", kube.directory / "server.key", {})
        opened.callback(kubelet.close)
        recorders = []
        for name in NODES:
            (tmp_path / name).mkdir()
            recorders.append(ScriptedRecorder(str(tmp_path / name)))
            opened.callback(recorders[-1].close)
            environ = {**os.environ, "CALICO_RUN_DIR": str(tmp_path / name)}
            kubelet.pods[f"calico-node-{name}"] = environ
            kube.create_node(name)
            status = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
            }
            patch(kube, f"/api/v1/nodes/{name}/status", {"status": status})
            make_pod(kube, "kube-system", f"calico-node-{name}", name, {"k8s-app": "calico-node"}, "calico-node")
        kube.ensure_namespace("shop")
        for (namespace, name, ip), node in zip((WEB, DB), NODES, strict=True):
            make_pod(kube, namespace, name, node, {}, "c", ip)
        yield TwoNodes(kube, kubelet, recorders)


def patch(kube: Cluster, path: str, body: dict[str, Any]) -> None:
    kube.request("PATCH", path, body, content_type="application/strategic-merge-patch+json")


def make_pod(
    kube: Cluster, namespace: str, name: str, node: str, labels: dict[str, str], container: str, ip: str = ""
) -> None:
    kube.create_pod(namespace, name, node, spec={"containers": [{"name": container, "image": "none"}]}, labels=labels)
    status = {"phase": "Running", **({"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {})}
    patch(kube, f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})


def both_sides(port: int, ingress: dict[str, Any], start: str = "2126-11-26T14:02:11.4{}0+00:00") -> list[Any]:
    """A connection of web's to db as the two nodes have recorded it: none knows the other's pod."""
    web, db = (address(end[2], one) for end, one in ((WEB, port), (DB, 5432)))
    times = [{"start": start.format(i), "last": start.format(i)} for i in range(2)]
    egress = rule("egress", "shop", "web", 0)
    return [
        flow(pod(*WEB, port), db, egress, **times[0], node="a lie"),
        flow(web, pod(*DB, 5432), ingress, **times[1], node="worker-2"),
    ]


def test_two_nodes_are_one_answer(flow_nodes: TwoNodes, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = both_sides(40001, rule("ingress", "shop", "db", 1))
    denied = both_sides(40002, end_of_tier("ingress", "shop", "db"), "2126-11-26T14:02:12.4{}0+00:00")
    for recorder, one, other in zip(flow_nodes.recorders, allowed, denied, strict=True):
        recorder.flows = [one, other]
    flow_nodes.recorders[1].losses = [{"from": 9.0, "to": 10.0, "source": "nflog-denied", "why": "rate", "count": 3}]
    assert flow_nodes.flows("--from", "shop/web", "--to", "shop/db", "-o", "json") == 0
    told = capsys.readouterr()
    flows = json.loads(told.out)
    assert [one["verdict"] for one in flows] == ["allowed", "denied"] and len(flows) == 2
    first, second = flows
    assert first["nodes"] == list(NODES) and first["node"] == "worker-2"
    assert [first[side]["name"] for side in ("source", "destination")] == ["web-7d9", "db-0"]
    assert [one["said"] for one in first["decided"]] == ["egress: shop/web rule 0", "ingress: shop/db rule 1"]
    assert second["decided"][-1]["endOfTier"] and second["source"]["name"] == "web-7d9"
    assert "node worker-2: not recorded: 3 reports of what was denied" in told.err
    asked = [("calico-node", ["calico-node", "-flows-pipe"])] * 2
    assert [one[1:] for one in flow_nodes.kubelet.asked] == asked
    until(lambda: all(one.poll() is not None for one in flow_nodes.kubelet.processes), "the commands have ended")

    # what one side allows and the other one denies is not allowed
    assert flow_nodes.flows("--verdict", "allowed", "-o", "json") == 0
    assert [one["source"]["port"] for one in json.loads(capsys.readouterr().out)] == [40001]
    assert flow_nodes.flows("--verdict", "denied", "--fail-if-denied", "--node", "worker-2") == 3
    said = capsys.readouterr()
    assert "DENIED" in said.out and said.out.count("\n") == 2

    # a node that does not answer is named
    flow_nodes.recorders[0].close()
    assert flow_nodes.flows("--port", "5432") == 0
    said = capsys.readouterr()
    assert said.out.count("tcp/5432") == 2 and "node worker-1 did not answer: cannot run calico-node in pod" in said.err
    assert "flow-query.sock: No such file" in said.err
    flow_nodes.recorders[0].open()

    assert flow_nodes.flows(token="nobody-token") == 1
    assert 'cannot list resource "pods"' in capsys.readouterr().err
    assert flow_nodes.flows("--node", "worker-9") == 1
    assert "there is no calico-node on worker-9" in capsys.readouterr().err


def test_a_replay_of_all_nodes_flows(flow_nodes: TwoNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the labels that each node has recorded of its own pods, which have none now."""
    document: dict[str, Any] = {"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy"}
    document |= {"metadata": {"name": "closed", "namespace": "shop"}}
    document["spec"] = {"selector": "app == 'db'", "types": ["Ingress"], "ingress": []}
    (tmp_path / "closed.yaml").write_text(json.dumps(document))
    sides = both_sides(40001, rule("ingress", "shop", "db", 1))
    sides[0]["source"]["labels"], sides[1]["destination"]["labels"] = {"app": "web"}, {"app": "db"}
    for recorder, side in zip(flow_nodes.recorders, sides, strict=True):
        recorder.flows = [side]

    def replayed(*words: str) -> tuple[int, dict[str, Any]]:
        asked = ["policy", "replay", "--with", str(tmp_path / "closed.yaml"), "-o", "json", *words]
        code = run([*asked, "--kubeconfig", flow_nodes.kube.kubeconfig("admin-token")], dict(os.environ))
        return code, json.loads(capsys.readouterr().out)

    code, found = replayed()
    (change,) = found["changes"]
    assert (code, change["traffic"], change["connections"], found["byLabelsOfNow"]) == (1, "tcp/5432", 1, 0), found
    assert change["after"] == "DENIED at the end of tier default" and not found["uncertain"]
    code, found = replayed("--node", "worker-1")  # which has no name for the other end: it is who has the address now
    assert (code, found["changes"], found["unchanged"], found["byLabelsOfNow"]) == (0, [], 1, 1)
    flow_nodes.recorders[0].close()
    code, found = replayed()
    assert code == 2 and any("node worker-1 did not answer" in one for one in found["unreadable"])
    flow_nodes.recorders[0].open()


def test_services_are_followed_for_their_names(kube: Cluster, tmp_path: Path) -> None:
    kube.ensure_namespace("shop")
    known, store = NamedServices(str(tmp_path)), kube.store()
    followed = services(store, str(tmp_path), SILENT)
    path = "/api/v1/namespaces/shop/services"
    port = {"name": "pg", "port": 443, "targetPort": 5432}
    made = kube.request("POST", path, {"metadata": {"name": "named-in-flows"}, "spec": {"ports": [port]}})
    pod_address, asked = (ip_address(text).packed for text in (DB[2], made["spec"]["clusterIP"]))
    sent = pod_address, pod_address, asked, 1, 5432, 443, 6
    record = FlowRecord(1, 1, *sent, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2)

    def named() -> tuple[str, ...] | None:
        known.look()
        return known.find(record)

    try:
        followed.use(wanted=True)
        until(lambda: named() == ("shop", "named-in-flows", "pg"), "the service has its name")
        kube.request("DELETE", f"{path}/named-in-flows")
        until(lambda: named() is None, "it is gone")
    finally:
        followed.use(wanted=False)
        store.close()
    assert not (tmp_path / SERVICES).exists()


def test_new_flows_of_two_nodes(flow_nodes: TwoNodes) -> None:
    """They are told once, with both sides; the commands in the pods end with whoever asks."""
    code = "import sys; from cni_calico.ctl.main import run; import os; sys.exit(run(sys.argv[1:], dict(os.environ)))"
    words = ["flows", "-f", "-o", "jsonl", "--verdict", "denied", "--not", "--port", "81"]
    words += ["--kubeconfig", flow_nodes.kube.kubeconfig()]
    asking = subprocess.Popen([sys.executable, "-c", code, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines: list[dict[str, Any]] = []
    assert asking.stdout is not None
    reading = threading.Thread(target=lambda: lines.extend(map(json.loads, asking.stdout or ())), daemon=True)
    reading.start()
    try:
        until(lambda: all(len(one.server) for one in flow_nodes.recorders), "both recorders have a reader")
        until(lambda: all(one.server.followed for one in flow_nodes.recorders), "both are followed")
        for port in (40001, 40002):
            for recorder, told in zip(
                flow_nodes.recorders, both_sides(port, end_of_tier("ingress", "shop", "db")), strict=True
            ):
                recorder.tell(told)
        until(lambda: len(lines) >= 2, "two flows are told")
    finally:
        asking.terminate()
        asking.wait(20)
        reading.join(20)
    assert [one["source"]["port"] for one in lines] == [40001, 40002]
    until(lambda: all(one.poll() is not None for one in flow_nodes.kubelet.processes), "the commands have ended")
