"""A node, the controllers and calicoctl on a cluster of projectcalico.org/v3, with the rights of calico-v3.yaml."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run as run_calicoctl
from cni_calico.model.access import NATIVE_GROUP
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import CONTROLLERS_USER, NATIVE_ROOT, NODE_USER, native_cluster
from tests.e2e.kubernetes.node import kube_node
from tests.e2e.kubernetes.programs import agent_command, agent_environ, controllers, run_agent
from tests.e2e.kubernetes.roles import rights, used, with_agent_roles
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.slow]


def test_everything_works_with_the_rights_of_the_manifest(
    host_ns: Namespace, pod_ns: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kube = native_cluster()
    kube.empty(NATIVE_ROOT)
    since = len(kube.audited())

    def plurals() -> set[str]:
        names = ("clusterinformations", "tiers", "felixconfigurations", "ippools", "ipamblocks", "hostendpoints")
        return {name for name in names if kube.request("GET", f"{NATIVE_ROOT}/{name}")["items"]}

    with (
        with_agent_roles(kube, "calico-v3.yaml"),
        rights(kube, "calico-v3.yaml"),
        kube_node(kube, host_ns, tmp_path) as node,
    ):
        environ = {**agent_environ(kube, tmp_path), "CALICO_API_GROUP": NATIVE_GROUP}
        run_agent(host_ns, environ, "-startup")
        assert plurals() >= {"clusterinformations", "tiers", "felixconfigurations", "ippools"}
        node.apply("IPPool", "tunnels", {"cidr": "10.67.0.0/16", "vxlanMode": "Always", "blockSize": 26})
        run_agent(host_ns, environ, "-allocate-tunnel-addrs-run-once")
        assert "ipamblocks" in plurals()
        auto = {"controllers": {"node": {"hostEndpoint": {"autoCreate": "Enabled"}}}}
        settings = {"apiVersion": NATIVE_GROUP, "kind": "KubeControllersConfiguration", "spec": auto}
        kube.request(
            "POST", f"{NATIVE_ROOT}/kubecontrollersconfigurations", {**settings, "metadata": {"name": "default"}}
        )
        named = {"CALICO_API_GROUP": NATIVE_GROUP, "DATASTORE_TYPE": "kubernetes", "ENABLED_CONTROLLERS": "node"}
        with open(tmp_path / "agent.log", "wb") as log, controllers(kube, tmp_path / "controllers", **named) as process:
            agent = subprocess.Popen([*agent_command(host_ns), "-felix"], env=environ, stderr=log)
            try:
                until(lambda: process.check_status() == (0, "Ready"), "the controllers are ready", 90)
                until(lambda: "hostendpoints" in plurals(), "the node has a host endpoint", 90)
                kube.create_pod(node.namespace, "web", node.nodename)
                added = node.pod_call("ADD", "web", "c0" * 32, pod_ns.path)
                assert added.ok, added.document
                until(lambda: "polic" in (tmp_path / "agent.log").read_text(), "the policy engine has decided", 90)
            finally:
                agent.terminate()
                agent.wait(30)
            assert process.end() == 0
        for user in (NODE_USER, CONTROLLERS_USER):
            assert not used(kube, user, since)[1]

        def calicoctl(*words: str) -> Any:
            capsys.readouterr()
            assert run_calicoctl(list(words), {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}) == 0
            return capsys.readouterr().out

        pools = json.loads(calicoctl("get", "ippools", "-o", "json"))["items"]
        assert {"tunnels"} < {pool["metadata"]["name"] for pool in pools}
        assert "10.67.0.0/16" in calicoctl("ipam", "show")
        calicoctl("ipam", "check")
        calicoctl("ipam", "configure", "--strictaffinity=true")
        assert kube.request("GET", f"{NATIVE_ROOT}/ipamconfigurations/default")["spec"]["strictAffinity"] is True
