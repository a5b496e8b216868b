"""Pods that keep their addresses because they ask for it, from their first ADD to the clean-up, at a real API server.

The plugin has the rights of calico-cni-plugin in the manifests, the janitor those of calico-kube-controllers; no more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.datastore.kubernetes.kubevirt import INSTANCES, MACHINES
from tests.deadlines import until
from tests.e2e.forks import forks_in
from tests.e2e.kubernetes.cluster import CONTROLLERS_USER, Cluster
from tests.e2e.kubernetes.kubevirt import Machines, kubevirt, reference
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.roles import node_with_role, rights, used
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

C = [f"{n}{n}" * 32 for n in "0123456789abcdef"]
SETS = "/apis/apps/v1/namespaces/space/statefulsets"
STICKY, IDENTITY = "cni-calico.io/sticky", "cni-calico.io/identity"


@pytest.fixture
def sticky_node(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    with ExitStack() as stack:
        made = stack.enter_context(node_with_role("calico.yaml", kube, host_ns, tmp_path))
        made.forks = stack.enter_context(forks_in(host_ns))
        yield made


class Pods:
    """The pods of a namespace, as their controllers and the kubelet make them."""

    def __init__(self, node: KubeNode, make_pod_ns: MakeNamespace) -> None:
        self.node, self.kube, self._make = node, node.kube, make_pod_ns
        self._sandboxes: dict[str, tuple[str, Namespace]] = {}
        self._free = list(C)

    def stateful(self, name: str, replicas: int) -> Any:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
        spec = {"replicas": replicas, "serviceName": name, "selector": {"matchLabels": labels}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}
        return self.kube.request("POST", SETS, body)

    def create(self, name: str, owner: Any = None, *, node: str = "node1", **annotations: str) -> None:
        named = {{"sticky": STICKY, "identity": IDENTITY}.get(key, key): text for key, text in annotations.items()}
        owners = [reference(owner)] if owner is not None else []
        self.kube.create_pod("space", name, node, annotations=named, ownerReferences=owners)

    def add(self, name: str, *, refused: str = "", **conf: Any) -> str:
        """Its address; with ``refused`` its ADD fails for that."""
        netns, container = self._make(), self._free.pop()
        self._sandboxes[name] = container, netns
        reply = self.node.pod_call("ADD", name, container, netns.path, **conf)
        if refused:
            assert not reply.ok and refused in str(reply.document), reply.document
            return ""
        assert reply.ok, reply.document
        assert self.node.pod_call("CHECK", name, container, netns.path, prevResult=reply.document, **conf).ok
        [found] = reply.document["ips"]
        return str(found["address"]).partition("/")[0]

    def remove(self, name: str) -> None:
        """From Kubernetes, at once; its sandbox is still there."""
        self.kube.delete_pod(self.kube.read_pod("space", name))

    def stop(self, name: str, **more: Any) -> None:
        container, netns = self._sandboxes.pop(name)
        assert self.node.pod_call("DEL", name, container, netns.path, **more).ok

    def end(self, name: str) -> None:
        self.stop(name)
        self.remove(name)


@pytest.fixture
def sticky_pods(sticky_node: KubeNode, make_pod_ns: MakeNamespace) -> Pods:
    return Pods(sticky_node, make_pod_ns)


@pytest.fixture
def ask_calicoctl(kube: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    config = tmp_path / "calicoctl.cfg"
    config.write_text(
        "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\n"
        f"spec:\n  datastoreType: kubernetes\n  kubeconfig: {kube.kubeconfig()}\n"
    )

    def call(*argv: str) -> str:
        capsys.readouterr()
        code = run(["-c", str(config), *argv], {})
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return shown.out + shown.err

    return call


def test_a_pod_that_is_made_again(sticky_pods: Pods, ask_calicoctl: Callable[..., str]) -> None:
    pods, calicoctl = sticky_pods, ask_calicoctl
    web = pods.stateful("web", 2)
    try:
        pods.create("web-0", web, sticky="true")
        first = pods.add("web-0")
        pods.end("web-0")
        pods.create("other")
        assert pods.add("other") != first, "nobody else gets it meanwhile"
        assert "leaked" not in calicoctl("ipam", "check", "--show-problem-ips").replace("0 leaked", "")
        pods.create("web-0", web, sticky="true")
        assert pods.add("web-0") == first
        # its node dies: no DEL, and the next pod of that name is on another node
        pods.remove("web-0")
        pods.kube.create_node("node2")
        pods.create("web-0", web, node="node2", sticky="true")
        assert pods.add("web-0", nodename="node2") == first
        assert "space.web.0" in calicoctl("ipam", "show", f"--ip={first}")
        # another of the set has another; one that does not want it any more an ordinary one
        pods.create("web-1", web, sticky="true")
        assert pods.add("web-1") != first
        pods.end("web-1")
        pods.node.apply("IPPool", "elsewhere", {"cidr": "10.99.0.0/16", "blockSize": 26})
        pods.create("web-1", web, sticky="true", **{"cni.projectcalico.org/ipv4pools": '["elsewhere"]'})
        assert pods.add("web-1").startswith("10.99.")
        assert "no pool that it names contains that; now it has 10.99." in (pods.node.root / "cni.log").read_text()
        pods.end("web-0")
        pods.create("web-0", web, sticky="false")
        assert pods.add("web-0") != first
        pods.end("web-0")
        calicoctl("ipam", "release", f"--ip={first}")
        assert f"{pods.node.conf()['name']}.sts.space.web.0" not in str(pods.node.dump())
    finally:
        pods.kube.request("DELETE", f"{SETS}/web")


def test_an_identity_is_one_pods_at_a_time(sticky_pods: Pods) -> None:
    pods = sticky_pods
    pods.create("db-a", identity="db.main")
    first = pods.add("db-a")
    pods.create("db-b", identity="db.main")
    pods.add("db-b", refused="pod space/db-a has it")
    pods.remove("db-a")  # by force: its sandbox is still there, and may run
    pods.add("db-b", refused=f"cannot add route {first}/32")
    pods.stop("db-a", uid="")
    assert pods.add("db-b") == first
    wanted = {"cni.projectcalico.org/ipAddrs": '["10.65.0.9"]'}
    pods.create("db-c", identity="db.other", **wanted)
    pods.add("db-c", refused="together with one that names its addresses")


@contextmanager
def hasty_janitor(kube: Cluster, directory: Path) -> Iterator[None]:
    """The controllers' one, which takes two seconds for the five minutes."""
    own = {f"CALICO_{name}_DIR": str(directory / name.lower()) for name in ("RUN", "STATE", "LOG")}
    environ = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **own,
        "DATASTORE_TYPE": "kubernetes",
        "KUBECONFIG": kube.kubeconfig("controllers-token"),
        "NODENAME": "janitor",
        "CALICO_DISABLE_FILE_LOGGING": "true",
        "JANITOR_KEPT_S": "2",
    }
    argv = [sys.executable, "-m", "tests.e2e.janitor_driver", "janitor"]
    with open(directory / "janitor.log", "wb") as log:
        process = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield
    except BaseException:
        sys.stderr.write((directory / "janitor.log").read_text())
        raise
    finally:
        process.kill()
        process.wait()


def test_what_is_over_is_released(sticky_pods: Pods, tmp_path: Path) -> None:
    """And what may come again, or is to be kept for ever, is not. The audit log says that the rights are enough."""
    pods, kube = sticky_pods, sticky_pods.kube
    since = len(kube.audited())
    with ExitStack() as stack:
        stack.enter_context(kubevirt(kube))
        stack.enter_context(rights(kube, "calico.yaml"))
        machines = Machines(kube, "space")
        instance = machines.run("vm")
        launcher = machines.create_pod(instance, "1", "node1")
        pods.add(launcher)
        sets = {name: pods.stateful(name, 2) for name in ("stays", "scaled", "goes", "kept", "bored")}
        for name, each in sets.items():
            pods.create(f"{name}-1", each, sticky="keep" if name == "kept" else "true")
            pods.add(f"{name}-1")
        pods.create("named", identity="mine")
        pods.add("named")
        for name in (launcher, "named", *(f"{each}-1" for each in sets)):
            pods.end(name)
        held = {"calnet.vmi.space.vm", "calnet.id.space.mine", *(f"calnet.sts.space.{name}.1" for name in sets)}

        def kept() -> set[str]:
            return {name for name in held if f"'handle_id': '{name}'" in str(pods.node.dump())}

        assert kept() == held
        kube.request("DELETE", f"{SETS}/goes")
        kube.request("DELETE", f"{SETS}/kept")
        pods.create("bored-1", sets["bored"])  # the annotation has been taken away
        pods.add("bored-1")
        pods.create("stays-1", sets["stays"], sticky="true")  # has not been added yet
        found = kube.request("GET", f"{SETS}/scaled")
        kube.request("PUT", f"{SETS}/scaled", {**found, "spec": {**found["spec"], "replicas": 1}})
        stack.enter_context(hasty_janitor(kube, tmp_path))
        released = {f"calnet.sts.space.{name}.1" for name in ("goes", "scaled", "bored")}
        until(lambda: kept() == held - released, f"what is over is released: {kept()}", 60)
        machines.delete(INSTANCES, "vm")
        machines.delete(MACHINES, "vm")
        until(lambda: kept() == held - released - {"calnet.vmi.space.vm"}, "the machine's, too", 60)
        requests, refused = used(kube, CONTROLLERS_USER, since)
        assert not refused
        asked = {(verb, what) for verb, what in requests if verb == "get"}
        kinds = {"virtualmachines", "virtualmachineinstances", "statefulsets", "namespaces"}
        assert kinds <= {what for _, what in asked}
        for name in ("stays", "scaled", "bored"):
            kube.request("DELETE", f"{SETS}/{name}")
