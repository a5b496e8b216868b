"""A cluster as Calico 3.15 left it is upgraded in place with pods running, goes back, and comes again.

What 3.15 stored, made in the kernel, and is configured with by its manifest is laid down by hand (tests/e2e/old_model)
with etcd and with the Kubernetes datastore. The way back is what its types, read and written, leave of our records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.install.settings import parse_settings
from cni_calico.install.template import render_conflist, template_values
from cni_calico.model.access import DatastoreConfig
from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_ready
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e import old_model as old
from tests.e2e.forks import forks_in
from tests.e2e.host import Reply, etcd_in
from tests.e2e.kubernetes.cluster import CRD_ROOT, Cluster, running_cluster
from tests.e2e.kubernetes.node import KubeNode, Relay
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import documented_removal
from tests.netns.startups import add_card

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.bird]

CRD = f"/apis/{old.GROUP}/v1"
MERGE = "application/merge-patch+json"
# ConfigMap calico-config of 3.15's two manifests
CONFLIST = """
{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "log_level": "info",
      %s
      "mtu": __CNI_MTU__,
      "ipam": {
          "type": "calico-ipam"
      },
      "policy": {
          "type": "k8s"
      },
      "kubernetes": {
          "kubeconfig": "__KUBECONFIG_FILEPATH__"
      }
    },
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
    {"type": "bandwidth", "capabilities": {"bandwidth": true}}
  ]
}
"""
OF_ETCD = """
      "etcd_endpoints": "__ETCD_ENDPOINTS__",
      "etcd_key_file": "__ETCD_KEY_FILE__",
      "etcd_cert_file": "__ETCD_CERT_FILE__",
      "etcd_ca_cert_file": "__ETCD_CA_CERT_FILE__",
"""
OF_KUBERNETES = """
      "datastore_type": "kubernetes",
      "nodename": "__KUBERNETES_NODE_NAME__",
"""
# of container calico-node; what names the datastore comes on top
ENVIRONMENT = {
    "CALICO_NETWORKING_BACKEND": "bird",
    "CLUSTER_TYPE": "k8s,bgp",
    "IP": "autodetect",
    "CALICO_IPV4POOL_IPIP": "Always",
    "CALICO_IPV4POOL_VXLAN": "Never",
    "FELIX_IPINIPMTU": "1440",
    "FELIX_VXLANMTU": "1440",
    "FELIX_WIREGUARDMTU": "1440",
    "CALICO_DISABLE_FILE_LOGGING": "true",
    "FELIX_DEFAULTENDPOINTTOHOSTACTION": "ACCEPT",
    "FELIX_IPV6SUPPORT": "false",
    "FELIX_LOGSEVERITYSCREEN": "info",
    "FELIX_HEALTHENABLED": "true",
}


@dataclass
class Site(ABC):
    """The node, and what differs between the datastores."""

    kube: Cluster
    node: KubeNode
    environ: dict[str, str]
    conf: dict[str, Any]
    pods: dict[str, Namespace] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.node.root

    def process_environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "CALICO_RUN_DIR": f"{self.root}/run",
            "FELIX_ENDPOINTSTATUSPATHPREFIX": f"{self.root}/run",
            "CALICO_STATE_DIR": f"{self.root}/state",
            "CALICO_LOG_DIR": f"{self.root}/log",
            "CALICO_NODENAME_FILE": f"{self.root}/state/nodename",
            "CALICO_BIRD_CONFIG_DIR": f"{self.root}/bird",
            "CALICO_CUSTOM_CONFIG_DIR": f"{self.root}/custom",
            **ENVIRONMENT,
            **self.environ,
        }

    @contextmanager
    def upgraded(self) -> Iterator[None]:
        """calico-node runs, with the server; it ends as when its pod does."""
        argv = ["nsenter", f"--net={self.node.host.path}", sys.executable, "-m", "cni_calico.nodeagent.main", "run"]
        with open(self.root / "node.log", "ab") as log:
            process = subprocess.Popen(argv, cwd=ROOT, env=self.process_environ(), stderr=log, stdout=log)
        try:
            try:
                until(lambda: not self.why_not_ready(), "the node is ready", 120)
                self.node.await_server(process)
            except AssertionError as e:
                raise AssertionError(f"{e}: {self.why_not_ready()}\n{(self.root / 'node.log').read_text()}") from None
            yield
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def why_not_ready(self) -> Any:
        return why_not_ready(read_status(f"{self.root}/run"), since_boot())

    def calicoctl(self, *arguments: str, check: bool = True) -> str:
        argv = ["nsenter", f"--net={self.node.host.path}", sys.executable, "-m", "cni_calico.ctl.main", *arguments]
        done = subprocess.run(argv, cwd=ROOT, env=self.process_environ(), capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def call(self, command: str, pod: str, container: str, netns: str = "", **more: Any) -> Reply:
        stdin = json.dumps({**self.conf, **more}).encode()
        return self.node.pod_call(command, pod, container, netns, stdin=stdin)

    def make_pod(self, name: str, labels: Mapping[str, str], **metadata: Any) -> None:
        self.kube.create_pod("space", name, "node1", labels=dict(labels), **metadata)

    # -- what is stored, raw ------------------------------------------------------------------------------------------

    @abstractmethod
    def blocks(self) -> dict[str, dict[str, Any]]:
        """Stored blocks by name, as they are."""

    @abstractmethod
    def lay_down(self) -> None:
        """Store what the old version left."""

    @abstractmethod
    def go_back(self) -> None:
        """The old version reads everything and writes it again."""

    @abstractmethod
    def take(self, pod: old.OldPod) -> None:
        """An ADD by the old version."""

    def held(self) -> dict[str, str]:
        """address -> handle"""
        from ipaddress import ip_network

        found = {}
        for block in self.blocks().values():
            for ordinal, index in enumerate(block["allocations"]):
                if index is not None:
                    address = ip_network(block["cidr"])[ordinal]
                    found[str(address)] = block["attributes"][index]["handle_id"]
        return found

    def take_in(self, block: dict[str, Any], pod: old.OldPod) -> dict[str, Any]:
        """A block after 3.15 gave an address of it to the pod."""
        from ipaddress import ip_address, ip_network

        handle, secondary = old.holder(pod)
        ordinal = int(ip_address(pod.address)) - int(ip_network(block["cidr"])[0])
        allocations = list(block["allocations"])
        assert allocations[ordinal] is None
        allocations[ordinal] = len(block["attributes"])
        return {
            **block,
            "allocations": allocations,
            "unallocated": [free for free in block["unallocated"] if free != ordinal],
            "attributes": [*block["attributes"], {"handle_id": handle, "secondary": secondary}],
        }


class EtcdSite(Site):
    def raw(self) -> dict[str, Any]:
        return {path: json.loads(value) if value else {} for path, value in self.node.raw().items()}

    def lay_down(self) -> None:
        documents = old.etcd_documents()
        self.node.put({path: document or {} for path, document in documents.items()})
        for path in [path for path, document in documents.items() if document is None]:
            self.node.spoil(path, b"")
        for pod in old.PODS:
            self.make_pod(pod.name, {"run": pod.run})

    def blocks(self) -> dict[str, dict[str, Any]]:
        return {path: value for path, value in self.raw().items() if old.kind_of_path(path) is old.BLOCK}

    def go_back(self) -> None:
        for path, value in self.raw().items():
            kind = old.kind_of_path(path)
            if kind is not None:
                self.node.spoil(path, json.dumps(old.written_back(kind, value, path)).encode())
            elif isinstance(value, dict) and value.get("kind") in old.RESOURCE_SPECS:
                specification = old.written_back(old.RESOURCE_SPECS[value["kind"]], value["spec"], path)
                if value["kind"] != "WorkloadEndpoint":
                    self.node.spoil(path, json.dumps({**value, "spec": specification}).encode())

    def take(self, pod: old.OldPod) -> None:
        [(path, block)] = [(p, b) for p, b in self.blocks().items() if b["cidr"] == "10.65.7.64/26"]
        self.node.spoil(path, json.dumps(self.take_in(block, pod)).encode())
        self.make_pod(pod.name, {"run": pod.run})
        key, document = old.endpoint(pod)
        self.node.put({f"{old.IPAM}/handle/{pod.handle}": {"block": {block["cidr"]: 1}}, key: document})


class KubernetesSite(Site):
    def objects(self, plural: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.kube.request("GET", f"{CRD}/{plural}")["items"]
        return found

    def lay_down(self) -> None:
        for number, name in ((5, "node1"), (6, "node2")):
            tunnel = old.TUNNEL if name == "node1" else "10.65.9.0"
            annotations = {
                "projectcalico.org/IPv4Address": f"10.0.0.{number}/24",
                "projectcalico.org/IPv4IPIPTunnelAddr": tunnel,
            }
            self.kube.create_node(name, metadata={"annotations": annotations})
        for definition in old.definitions():
            self.kube.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        api = self.kube.api()
        for plural in old.PLURALS.values():
            self.kube.until_served(api, f"{CRD_ROOT}/{plural}")
        api.close()
        for obj in old.kubernetes_objects():
            namespace = obj["metadata"].get("namespace")
            middle = f"/namespaces/{namespace}" if namespace else ""
            self.kube.request("POST", f"{CRD}{middle}/{old.PLURALS[obj['kind']]}", obj)
        for pod in old.PODS:
            self.annotate(pod)
        # the first step of an upgrade
        self.kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "manifests" / "crds.yaml"))

    def annotate(self, pod: old.OldPod) -> None:
        """No containerID: 3.15 wrote none."""
        own = {"podIP": f"{pod.address}/32", "podIPs": f"{pod.address}/32"}
        annotations = {f"cni.projectcalico.org/{name}": value for name, value in own.items()}
        self.make_pod(pod.name, {"run": pod.run}, annotations=annotations)
        status = {"phase": "Running", "podIP": pod.address, "podIPs": [{"ip": pod.address}]}
        path = f"/api/v1/namespaces/space/pods/{pod.name}/status"
        self.kube.request("PATCH", path, {"status": status}, content_type=MERGE)

    def blocks(self) -> dict[str, dict[str, Any]]:
        return {obj["metadata"]["name"]: obj["spec"] for obj in self.objects("ipamblocks")}

    def go_back(self) -> None:
        kinds = {"ipamblocks": old.BLOCK, "blockaffinities": old.AFFINITY_OBJECT, "ipamhandles": old.HANDLE}
        kinds["ipamconfigs"] = old.CONFIG
        kinds |= {old.PLURALS[kind]: spec for kind, spec in old.RESOURCE_SPECS.items() if kind in old.PLURALS}
        for plural, kind in kinds.items():
            for obj in self.objects(plural):
                name = obj["metadata"]["name"]
                kept = {"name": name, "resourceVersion": obj["metadata"]["resourceVersion"]}
                note = obj["metadata"]["annotations"]["projectcalico.org/metadata"]
                json.loads(note)
                metadata = {**kept, "annotations": {"projectcalico.org/metadata": note}}  # and no labels
                spec = old.written_back(kind, obj["spec"], f"{plural}/{name}")
                self.kube.request("PUT", f"{CRD}/{plural}/{name}", {**obj, "metadata": metadata, "spec": spec})

    def take(self, pod: old.OldPod) -> None:
        path = f"{CRD}/ipamblocks/10-65-7-64-26"
        obj = self.kube.request("GET", path)
        self.kube.request("PUT", path, {**obj, "spec": self.take_in(obj["spec"], pod)})
        spec = {"handleID": pod.handle, "block": {obj["spec"]["cidr"]: 1}, "deleted": False}
        self.kube.request("POST", f"{CRD}/ipamhandles", old.custom("IPAMHandle", pod.handle, spec))
        self.annotate(pod)


def configuration(manifest: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The plugin's configuration as the install container makes it of 3.15's ConfigMap."""
    settings = parse_settings({"CNI_NETWORK_CONFIG": manifest, "CNI_MTU": "1440", **environ}, bundle="/b")
    values = template_values(settings, node="node1", token="", tls_files=frozenset())
    made = yaml.safe_load(render_conflist(manifest, values))
    assert [plugin["type"] for plugin in made["plugins"]] == ["calico", "portmap", "bandwidth"]
    return {**made["plugins"][0], "name": made["name"], "cniVersion": made["cniVersion"]}


@contextmanager
def site_on(kind: str, kube: Cluster, host: Namespace, root: Path) -> Iterator[Site]:
    with ExitStack() as undo:
        add_card(host, "eth0", "10.0.0.5/24")
        host.do("route", "replace", "default", "via", "10.0.0.1")
        relay = Relay(host, kube.port)
        undo.callback(relay.close)
        kube.ensure_namespace("space")
        (root / "run").mkdir()
        kubeconfig = {"kubernetes": {"kubeconfig": kube.kubeconfig()}}
        files = {"log_file_path": f"{root}/cni.log", "nodename_file": f"{root}/state/nodename"}
        site: Site
        if kind == "etcd":
            member = undo.enter_context(etcd_in(host, root))
            config = DatastoreConfig("etcdv3", etcd_endpoints=(member.client_url,))
            node = KubeNode(host, root, config, kube=kube, relay=relay)
            node.forks = undo.enter_context(forks_in(host))
            environ = {"ETCD_ENDPOINTS": member.client_url, "CALICO_K8S_NODE_REF": "node1", "HOSTNAME": "node1"}
            conf = configuration(CONFLIST % OF_ETCD, {"ETCD_ENDPOINTS": member.client_url})
            assert "datastore_type" not in conf and "nodename" not in conf
            site = EtcdSite(kube, node, environ, {**conf, **kubeconfig, **files})
        else:
            node = KubeNode(host, root, DatastoreConfig("kubernetes"), kube=kube, relay=relay)
            environ = {
                "DATASTORE_TYPE": "kubernetes",
                "WAIT_FOR_DATASTORE": "true",
                "NODENAME": "node1",
                "FELIX_TYPHAK8SSERVICENAME": "none",
                "KUBECONFIG": kube.kubeconfig(),
            }
            conf = configuration(CONFLIST % OF_KUBERNETES, {"KUBERNETES_NODE_NAME": "node1"})
            site = KubernetesSite(kube, node, environ, {**conf, **kubeconfig, **files})
        site.lay_down()
        yield site


@pytest.fixture(params=[pytest.param("etcd", marks=[pytest.mark.etcd, pytest.mark.slow]), "kubernetes"])
def site(
    request: pytest.FixtureRequest, host_ns: Namespace, make_pod_ns: MakeNamespace, tmp_path: Path
) -> Iterator[Site]:
    with ExitStack() as undo:
        # the custom resource definitions of a cluster of its own are 3.15's at first
        own = request.param == "kubernetes"
        kube = undo.enter_context(running_cluster()) if own else request.getfixturevalue("kube")
        made = undo.enter_context(site_on(request.param, kube, host_ns, tmp_path))
        for pod in old.PODS:
            made.pods[pod.name] = make_pod_ns()
            old.wire(host_ns, made.pods[pod.name], pod)
        yield made


SERVE = (
    "import socket,sys\n"
    "s=socket.create_server(('0.0.0.0',int(sys.argv[1])),backlog=8)\n"
    "print(flush=True)\n"
    "while True: s.accept()[0].close()"
)


@contextmanager
def listening(ns: Namespace, *ports: int) -> Iterator[None]:
    with ExitStack() as undo:
        for port in ports:
            argv = ["nsenter", f"--net={ns.path}", sys.executable, "-c", SERVE, str(port)]
            process = undo.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE))
            undo.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline()
        yield


def connects(ns: Namespace, address: str, port: int) -> bool:
    program = f"import socket; socket.create_connection(('{address}', {port}), 1).close()"
    return ns.run(sys.executable, "-c", program, check=False).returncode == 0


def pings(ns: Namespace, address: str) -> bool:
    return ns.run("ping", "-c1", "-W2", address, check=False).returncode == 0


def is_clean(site: Site) -> str:
    """What ``calicoctl ipam check`` says; it exits with 1 when it found problems."""
    return site.calicoctl("ipam", "check")


def old_blocks() -> set[str]:
    return {"10.65.7.64/26", "10.65.8.0/26"}


def block_of(address: str) -> str:
    from ipaddress import ip_address, ip_network

    found = [cidr for cidr in old_blocks() if ip_address(address.partition("/")[0]) in ip_network(cidr)]
    return found[0] if found else ""


def add(site: Site, name: str, make: MakeNamespace) -> str:
    site.make_pod(name, {"run": "new"})
    netns = site.pods[name] = make()
    reply = site.call("ADD", name, container_of(name), netns.path)
    assert reply.ok, reply.document
    assert reply.document["cniVersion"] == "0.3.1" and reply.document["ips"][0]["version"] == "4"
    return str(reply.document["ips"][0]["address"]).partition("/")[0]


def container_of(name: str) -> str:
    return name.encode().hex().ljust(64, "0")


def delete(site: Site, name: str, container: str) -> None:
    """As the kubelet does: with the namespace, and again without it; then the pod goes."""
    for netns in (site.pods[name].path, "", ""):
        reply = site.call("DEL", name, container, netns)
        assert reply.ok, reply.document
    site.kube.delete_pod(site.kube.read_pod("space", name))


SYSCTLS = ("proxy_arp", "forwarding", "route_localnet", "rp_filter")


def state_of(site: Site, name: str, veth: str) -> dict[str, Any]:
    """What must not change of a running pod: its interface's both ends, addresses, routes, neighbours, switches."""
    host, inside = site.node.host, site.pods[name]
    outer, inner = host.link(veth), inside.link("eth0")
    assert outer is not None and inner is not None
    kept = ("ifindex", "address", "flags", "mtu", "operstate", "link_index")
    return {
        "links": [{key: link.get(key) for key in kept} for link in (outer, inner)],
        "addresses": (sorted(host.addresses(veth)), sorted(inside.addresses("eth0"))),
        "host": sorted({(r["dst"], r.get("scope")) for r in host.routes() if r.get("dev") == veth}),
        "pod": [(r["dst"], r.get("gateway"), r.get("scope"), r.get("protocol")) for r in inside.routes()],
        "neighbours": [n for n in inside.ip("neigh", "show", "nud", "permanent") if n.get("dst") == "169.254.1.1"],
        "switches": [host.sysctl(f"ipv4/conf/{veth}/{name}") for name in SYSCTLS],
    }


def kernel_of(site: Site, *names: str) -> dict[str, dict[str, Any]]:
    """The state of running pods, by name."""
    return {name: state_of(site, name, veth_of(name)) for name in names}


def veth_of(name: str) -> str:
    return old.OldPod(name, "", "", "").veth


def test_upgraded_in_place_and_back_and_again(site: Site, make_pod_ns: MakeNamespace) -> None:
    host, web, client, first = site.node.host, old.WEB, old.CLIENT, old.FIRST
    running = [pod.name for pod in old.PODS]
    before = kernel_of(site, *running)
    assert [state["pod"][0][0] for state in before.values()] == ["default"] * 3  # there is something to compare
    assert pings(site.pods[client.name], web.address)
    with listening(site.pods[web.name], 80, 81):
        assert connects(site.pods[client.name], web.address, 81)  # nobody enforces anything yet

        with site.upgraded():
            # running pods keep what they have, and get policy: those without a tier are in tier default
            assert kernel_of(site, *running) == before
            assert pings(host, web.address)
            until(lambda: not connects(site.pods[client.name], web.address, 81), "policies are in force", 30)
            assert connects(site.pods[client.name], web.address, 80)
            assert_policies(site)
            aliases = {(host.link(pod.veth) or {}).get("ifalias", "")[:13] for pod in old.PODS}
            assert aliases == ({"cni-calico/2:"} if isinstance(site, EtcdSite) else {""}), aliases

            # new pods use the blocks that the node has; nothing else is claimed
            new = [add(site, f"new-{i}", make_pod_ns) for i in range(3)]
            assert all(block_of(address) for address in new), new
            assert {block["cidr"] for block in site.blocks().values()} == {*old_blocks(), "10.65.9.0/26"}
            assert not set(new) & {pod.address for pod in old.PODS} and len(set(new)) == 3
            assert pings(site.pods["new-0"], client.address)
            is_clean(site)

            # a DEL of a sandbox that the pod had before takes nothing from it
            for netns in ("", site.pods[client.name].path):
                assert site.call("DEL", client.name, "e5" * 32, netns).ok
            assert kernel_of(site, *running) == before and client.address in site.held()
            assert pings(host, client.address)

            # an old pod goes
            delete(site, first.name, first.container)
            assert host.link(first.veth) is None and first.address not in site.held()
            assert first.handle not in set(site.held().values())
            assert_nothing_of(site, first)
            is_clean(site)
            held, running = site.held(), [web.name, client.name, *(f"new-{i}" for i in range(3))]
            during = kernel_of(site, *running)
            assert {name: during[name] for name in (web.name, client.name)} == {
                name: before[name] for name in (web.name, client.name)
            }

        # calico-node has ended: pods keep their network, and what policies forbid
        assert kernel_of(site, *running) == during
        assert not connects(site.pods[client.name], web.address, 81)

        # the old version comes back: it reads all, writes all, makes a pod, and our rules are removed as documented
        site.go_back()
        assert site.held() == held
        back = old.OldPod("back-0", "d4" * 32, "10.65.7.120", "new")
        site.take(back)
        site.pods[back.name] = make_pod_ns()
        old.wire(host, site.pods[back.name], back)
        for command in ("nft delete table ip calico", documented_removal()):
            host.run("sh", "-c", command)
        assert "calico" not in host.run("nft", "list", "tables").stdout
        assert kernel_of(site, *running) == during
        for name, address in ((back.name, web.address), (web.name, back.address), ("new-0", client.address)):
            assert pings(site.pods[name], address), (name, address)
        assert connects(site.pods[client.name], web.address, 81)  # nothing of ours enforces anything any more

    during = kernel_of(site, *running, back.name)
    with site.upgraded():
        assert kernel_of(site, *running, back.name) == during
        assert pings(host, back.address) and pings(host, web.address)
        address = add(site, "again", make_pod_ns)
        assert block_of(address) and address not in {*held, back.address}
        is_clean(site)
        for name, container in (
            ("again", container_of("again")),
            *((f"new-{i}", container_of(f"new-{i}")) for i in range(3)),
            *((pod.name, pod.container) for pod in (web, client, back)),
        ):
            delete(site, name, container)
        is_clean(site)
        assert set(site.held().values()) == {"ipip-tunnel-addr-node1", "ipip-tunnel-addr-node2"}, site.held()
        assert not [link["ifname"] for link in host.ip("link", "show") if link["ifname"].startswith("cali")]
        assert not [route for route in host.routes() if str(route.get("dev", "")).startswith("cali")]
        for pod in (*old.PODS, back):
            assert_nothing_of(site, pod)


def assert_policies(site: Site) -> None:
    table = site.calicoctl("get", "globalnetworkpolicies", "-o", "wide")
    [row] = [line.split() for line in table.splitlines() if "web-http" in line]
    assert row[1] == "default", table
    table = site.calicoctl("get", "networkpolicies", "-n", "space", "-o", "wide")
    [row] = [line.split() for line in table.splitlines() if "first-none" in line]
    assert "default" in row[1:], table
    shown = site.calicoctl("policy", "show", old.WEB.address)
    assert "tier default" in shown and "web-http" in shown, shown


def assert_nothing_of(site: Site, pod: old.OldPod) -> None:
    assert not [path for path in site.node.dump() if pod.container in path or pod.name.replace("-", "--") in path]
