"""A cluster of real kubelets, and the ways in which a CNI gets onto its nodes.

Rule: a lab starts without any network configuration; one of the ``install_`` functions brings it. What is installed is
what users get: the bundle, or the manifests with their image.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import LAB_CACHE, ROOT
from tests.deadlines import until
from tests.lab.control_plane import API, ETCD, NET4, ControlPlane
from tests.lab.host import PLUGINS, places_on_this_machine, read_sysctls, remove_cgroup, restore_sysctls, run
from tests.lab.layouts import KUBEADM, Layout
from tests.lab.node import Node

_PREFIX = "cct-lab-"
POOL4, POOL6 = "10.65.0.0/16", "fd65::/48"
_ETCD_CLIENT = {"CA_CERT": "ca", "CERT": "cert", "KEY": "key"}
CHAINED = [{"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}]


class NotClean(AssertionError):
    """``calicoctl ipam check`` found something."""


class Lab:
    """``bundle``: the directory with the frozen executables. ``etcd``: Calico's records are there."""

    etcd = False

    def __init__(self, directory: Path, plane: ControlPlane, nodes: Sequence[Node], bundle: Path | None) -> None:
        self.directory = directory
        self.plane = plane
        self.nodes = list(nodes)
        self.bundle = bundle
        self.dual = plane.dual
        self.kubectl = plane.kubectl
        self.get = plane.get

    def apply(self, *documents: Any) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        self.kubectl("apply", "-f", "-", stdin=text)

    def await_ready_nodes(self) -> None:
        wanted = {node.name for node in self.nodes}
        until(
            lambda: self.ready_nodes() >= wanted,
            f"{wanted} Ready; see {self.directory}/node*/kubelet.log",
            pause_s=0.1,
        )

    def ready_nodes(self) -> set[str]:
        """Their names."""
        return {item["metadata"]["name"] for item in self.get("nodes")["items"] if _is(item, "Ready")}

    def calicoctl(self, *argv: str, check: bool = True) -> str:
        """As the cluster's administrator."""
        assert self.bundle is not None
        environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": self.plane.admin}
        if self.etcd:
            environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": ETCD}
            environ |= {f"ETCD_{what}_FILE": self.plane.etcd_file(file) for what, file in _ETCD_CLIENT.items()}
        settings = [f"{name}={value}" for name, value in environ.items()]
        done = run(*self.plane.inside("env", *settings, self.bundle / "calicoctl", *argv), check=False)
        if check and done.returncode != 0:
            raise NotClean(f"calicoctl {' '.join(argv)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    # -- what is there ------------------------------------------------------------------------------------------------

    def pods(self, namespace: str = "default") -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.get("pods", "-n", namespace)["items"]
        return items

    def await_pods(self, count: int, *, seconds: float = 120) -> list[dict[str, Any]]:
        """That many pods in the default namespace, all Ready."""

        def ready() -> list[dict[str, Any]]:
            found = [pod for pod in self.pods() if _is(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]]
            return found if len(found) == count else []

        found: list[dict[str, Any]] = self.until_or_describe(ready, f"{count} pods Ready", seconds)
        return found

    def until_or_describe(self, condition: Callable[[], Any], what: str, seconds: float) -> Any:
        """The condition's value; an error tells what there is."""
        try:
            return until(condition, what, timeout_s=seconds, pause_s=0.3)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.describe()}") from None

    def warnings(self) -> list[str]:
        """What kubelets complained of, about pods."""
        items = self.get("events")["items"]
        return [f"{e['reason']}: {e['message']}" for e in items if e["type"] == "Warning" and "Sandbox" in e["reason"]]

    def describe(self) -> str:
        """What a person looks at first when pods do not come up, or do not go."""
        texts = [self.kubectl("get", "pods", "-A", "-o", "wide"), self.kubectl("get", "events", "-A")[-4000:]]
        logs = [log for node in self.nodes for log in node.directory.glob("*/log/pods/*/*/*.log")]
        logs += [node.directory / "calico-node.log" for node in self.nodes]
        texts += [log.read_text(errors="replace")[-2000:] for log in logs if log.exists()]
        for node in self.nodes:
            lines = node.containerd_log.read_text(errors="replace").splitlines()
            texts.append("\n".join([line[:400] for line in lines if "level=error" in line][-10:]))
        return "\n".join(texts)

    def await_no_pods(self, *, seconds: float = 120) -> None:
        self.until_or_describe(lambda: not self.pods(), "no pods", seconds)

    def exec(self, pod: dict[str, Any] | str, *argv: str, check: bool = True) -> str:
        name = pod if isinstance(pod, str) else pod["metadata"]["name"]
        return self.kubectl("exec", name, "--", *argv, check=check)

    def leftovers(self) -> list[str]:
        """What pods that are gone have left: links, routes, addresses; nothing in a clean lab without tests' pods. The
        controllers' own pods are not gone.
        """
        links, containers = self._of_controllers()
        found = []
        for node in self.nodes:
            for link in json.loads(node.run("ip", "-j", "link", "show")):
                if link["ifname"].startswith("cali") and link["ifname"] not in links:
                    found.append(f"{node.name}: link {link['ifname']}")
            for family in ("-4", "-6"):
                for route in json.loads(node.run("ip", "-j", family, "route", "show")):
                    if route.get("dev", "").startswith("cali") and route["dev"] not in links:
                        found.append(f"{node.name}: route {route['dst']}")
        held = (name for name in self._handles() if "tunnel-addr" not in name)
        return found + [f"handle {name}" for name in held if name.rpartition(".")[2] not in containers]

    def _of_controllers(self) -> tuple[set[str], set[str]]:
        """The interfaces and the containers of pods in kube-system with addresses of their own."""
        if not any(not pod["spec"].get("hostNetwork") for pod in self.pods("kube-system")):
            return set(), set()
        told = json.loads(self.calicoctl("get", "workloadendpoints", "-n", "kube-system", "-o", "json"))
        specs = [item["spec"] for item in told["items"]]
        return {spec["interfaceName"] for spec in specs}, {spec.get("containerID", "") for spec in specs}

    def _handles(self) -> list[str]:
        if self.etcd:
            return [key.rpartition("/")[2] for key in self.plane.etcd_keys("/calico/ipam/v2/handle/")]
        return [item["spec"]["handleID"] for item in self.get("ipamhandles.crd.projectcalico.org")["items"]]


def _is(item: dict[str, Any], kind: str) -> bool:
    conditions = item["status"].get("conditions", [])
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def remove_dead_labs() -> None:
    """What runs that were killed have left; their programs have died with them."""
    for directory in LAB_CACHE.glob(f"{_PREFIX}*"):
        owner = directory / "owner"
        if owner.exists() and not Path("/proc", owner.read_text()).exists():
            for netns in Path("/var/run/netns").glob(f"{directory.name}-*"):
                run("ip", "netns", "delete", netns.name, check=False)
            remove_cgroup(directory.name)
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running_lab(
    *,
    nodes: int = 2,
    dual: bool = False,
    images: Sequence[Path] = (),
    bundle: Path | None = None,
    layout: Layout = KUBEADM,
) -> Iterator[Lab]:
    """The control plane and its nodes, not Ready because they have no network yet; all of it removed at the end."""
    with ExitStack() as undo:
        LAB_CACHE.mkdir(parents=True, exist_ok=True)
        remove_dead_labs()
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=LAB_CACHE))
        (directory / "owner").write_text(str(os.getpid()))
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        undo.callback(restore_sysctls, read_sysctls())
        undo.callback(remove_cgroup, directory.name)
        plane = ControlPlane(directory, directory.name, dual=dual)
        undo.callback(plane.stop)
        plane.start()
        undo.enter_context(places_on_this_machine(layout.foreign()))
        made = [Node(plane, directory.name, i + 1, list(images), layout) for i in range(nodes)]
        for node in made:
            undo.callback(node.power_off)
            node.power_on()
        yield Lab(directory, plane, made, bundle)


# -- ways to install --------------------------------------------------------------------------------------------------


def install_bridge(lab: Lab) -> None:
    """The yardstick: bridge, host-local, portmap; no routes between nodes."""
    for node in lab.nodes:
        node.install_plugins("bridge", "host-local", "portmap", "loopback", source=PLUGINS)
        ranges = [[{"subnet": f"10.244.{node.number}.0/24"}]]
        if lab.dual:
            ranges.append([{"subnet": f"fd44:{node.number}::/64"}])
        ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
        _write_conflist(node, "bridge", [bridge, *CHAINED])
    lab.await_ready_nodes()


def _write_conflist(node: Node, name: str, plugins: list[dict[str, Any]]) -> None:
    document = {"cniVersion": "1.0.0", "name": name, "plugins": plugins}
    path = node.disk("/etc/cni/net.d") / "10-lab.conflist"
    path.with_suffix(".new").write_text(json.dumps(document))
    path.with_suffix(".new").rename(path)


def manifest(name: str = "calico.yaml", *, leave_out: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The documents of one of manifests/ but those of the given kinds."""
    text = (ROOT / "manifests" / name).read_text()
    return [d for d in yaml.safe_load_all(text) if d and d["kind"] not in leave_out]


def pool_variables(lab: Lab) -> dict[str, str]:
    """A VXLAN pool for each family."""
    common = {"IP": "autodetect", "CALICO_IPV4POOL_CIDR": POOL4, "CALICO_IPV4POOL_VXLAN": "Always"}
    if not lab.dual:
        return {**common, "CALICO_IPV4POOL_IPIP": "Never", "FELIX_IPV6SUPPORT": "false"}
    six = {"IP6": "autodetect", "CALICO_IPV6POOL_CIDR": POOL6, "CALICO_IPV6POOL_VXLAN": "Always"}
    return {**common, **six, "CALICO_IPV4POOL_IPIP": "Never", "FELIX_IPV6SUPPORT": "true"}


def install_bundle(lab: Lab, **variables: str) -> None:
    """The bundle in the plugin directories, ``calico-node run`` as a program of each node, rights of the manifests.

    ``variables`` are the agents' own. Nothing runs from an image, so nothing but the tests' own pods is on the nodes.
    """
    assert lab.bundle is not None
    kept = manifest(leave_out=["DaemonSet", "Deployment", "PodDisruptionBudget", "ConfigMap"])
    lab.apply(*kept, *manifest("janitor.yaml"))  # no Deployment: an agent is the janitor
    for node in lab.nodes:
        run(ROOT / "build" / "install-bundle.sh", lab.bundle, node.disk("/opt/cni/bin"), "/opt/cni/bin")
        node.install_plugins("portmap", "loopback", source=PLUGINS)
        agent = _account_kubeconfig(lab, node, "calico-node", "/etc/calico/kubeconfig")
        plugin = _account_kubeconfig(lab, node, "calico-cni-plugin", "/etc/cni/net.d/calico-kubeconfig")
        environ = {
            "DATASTORE_TYPE": "kubernetes",
            "KUBECONFIG": agent,
            "NODENAME": node.name,
            "WAIT_FOR_DATASTORE": "true",
            "CALICO_NETWORKING_BACKEND": "vxlan",
            **pool_variables(lab),
            **variables,
        }
        node.enable("calico-node", "/opt/cni/bin/calico-node", "run", **environ)
        calico = {
            "type": "calico",
            "datastore_type": "kubernetes",
            "nodename": node.name,
            "log_file_path": "/var/log/calico/cni.log",
            "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" if lab.dual else "false"},
            "policy": {"type": "k8s"},
            "kubernetes": {"kubeconfig": plugin},
        }
        _write_conflist(node, "k8s-pod-network", [calico, *CHAINED])
    lab.await_ready_nodes()


def _account_kubeconfig(lab: Lab, node: Node, account: str, path: str) -> str:
    token = lab.kubectl("create", "token", account, "-n", "kube-system", "--duration=24h").strip()
    lab.plane.authority.kubeconfig(node.disk(path), API, token=token)
    return path


# there is no kube-proxy: where the API server is without it
_SERVER = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "kubernetes-services-endpoint", "namespace": "kube-system"},
    "data": {"KUBERNETES_SERVICE_HOST": f"{NET4}.1", "KUBERNETES_SERVICE_PORT": "6443"},
}


def install_manifest(
    lab: Lab,
    *,
    name: str = "calico.yaml",
    backend: str = "vxlan",
    change: Callable[[dict[str, Any]], None] | None = None,
    **variables: str,
) -> None:
    """One of manifests/ as users apply it, or calico-etcd.yaml, with the settings that they are told to look at.

    ``change`` is done to the DaemonSet's pod specification.
    """
    documents = manifest("calico-etcd.yaml" if lab.etcd else name)
    for document in documents:
        if document["kind"] == "Secret":
            document["data"] = {
                f"etcd-{file}": b64encode(lab.plane.etcd_file(file).read_bytes()).decode()
                for file in _ETCD_CLIENT.values()
            }
        if document["kind"] == "ConfigMap":
            document["data"]["calico_backend"] = backend
            if lab.etcd:
                document["data"]["etcd_endpoints"] = ETCD
                for file in _ETCD_CLIENT.values():
                    document["data"][f"etcd_{file}"] = f"/calico-secrets/etcd-{file}"
            if lab.dual:
                _ask_for_both_families(document["data"])
        if document["kind"] == "DaemonSet":
            spec = document["spec"]["template"]["spec"]
            [container] = spec["containers"]
            wanted = {**pool_variables(lab), **variables}
            kept = [entry for entry in container["env"] if entry["name"] not in wanted]
            container["env"] = kept + [{"name": name, "value": value} for name, value in wanted.items()]
            if change is not None:
                change(spec)
    lab.apply(*documents, _SERVER)
    lab.await_ready_nodes()


def install_manifest_for_etcd(lab: Lab) -> None:
    """manifests/calico-etcd.yaml with its Secret filled in: the etcd of the API server, as kubeadm's clusters do."""
    lab.etcd = True
    install_manifest(lab)


def as_upstreams(spec: dict[str, Any]) -> None:
    """Make a pod specification call what upstream's manifests call, where they call it."""
    [node] = spec["containers"]
    del node["command"]
    program = "/bin/calico-node"
    node["lifecycle"]["preStop"]["exec"]["command"] = [program, "-shutdown"]
    node["livenessProbe"]["exec"]["command"] = [program, "-felix-live", "-bird-live"]
    node["readinessProbe"]["exec"]["command"] = [program, "-felix-ready", "-bird-ready"]
    last = spec["initContainers"][-1]
    spec["initContainers"].append(
        {**last, "name": "mount-bpffs", "command": ["calico-node", "-init", "-best-effort"], "env": []}
    )


def _ask_for_both_families(data: dict[str, str]) -> None:
    config = data["cni_network_config"]
    asked = config.replace(
        '"type": "calico-ipam"', '"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"'
    )
    assert asked != config
    data["cni_network_config"] = asked
