"""Upstream's own Deployment of calico-kube-controllers with only the image changed: its environment, entry point,
probes, user, volumes and role, in a root directory of its own. Facts of upstream's manifests for v3.32 and v3.0, and of
the chart after v3.32, whose image has one program for everything.

Each runs from the sources, and as the frozen executables in the file tree of the image.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.conftest import ROOT
from tests.contract.etcd_process import single
from tests.deadlines import soon, until
from tests.e2e.etcd.certificates import make_authority
from tests.e2e.host import etcd_in
from tests.e2e.kubernetes.cluster import CONTROLLERS_USER, NODE_USER, Cluster
from tests.e2e.kubernetes.node import ETCD, kube_node
from tests.e2e.kubernetes.programs import lay_out_sources
from tests.e2e.kubernetes.records import POLICY, SETTINGS, wipe
from tests.e2e.kubernetes.roles import RBAC
from tests.netns.namespaces import Namespace
from tests.netns.startups import add_card

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

COMPONENT = ("component", "kube-controllers")
ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
READ, ALL = ["get", "list", "watch"], ["get", "list", "watch", "create", "update", "delete"]
CRD = "crd.projectcalico.org"
# (groups, resources, verbs) of upstream's ClusterRoles: no Leases, no Events
OF_KUBERNETES = (
    ("", ["nodes", "pods"], READ),
    ("", ["services", "services/status"], [*READ, "update"]),
    (CRD, ["ipreservations"], ["list"]),
    (CRD, ["blockaffinities", "ipamblocks", "ipamhandles", "ipamconfigs", "tiers"], ALL),
    (CRD, ["ippools"], ["list", "watch"]),
    (CRD, ["hostendpoints"], ALL),
    (CRD, ["clusterinformations", "kubecontrollersconfigurations"], [*READ, "create", "update"]),
)
POLICIES = ("networking.k8s.io", ["networkpolicies"], ["watch", "list"])
OF_ETCD = (
    ("", ["pods", "nodes", "namespaces", "serviceaccounts"], READ),
    ("", ["services", "services/status"], [*READ, "update"]),
    POLICIES,
)
# no right to get anything; POLICIES is the only addition, since Kubernetes 1.16 has them in that group alone
OF_V3_0 = (
    *((group, ["pods", "namespaces", "networkpolicies", "nodes"], ["watch", "list"]) for group in ("", "extensions")),
    POLICIES,
)
# version -> role, controllers, mode of the files of Secret calico-etcd-secrets
ON_ETCD = {
    "v3.32": (OF_ETCD, "policy,namespace,serviceaccount,workloadendpoint,node,loadbalancer", "0440"),
    "v3.0": (OF_V3_0, "policy,profile,workloadendpoint,node", "0644"),
}
SECRETS = ("etcd-ca", "etcd-cert", "etcd-key")
ROLE = "upstreams-kube-controllers"
# what the controllers find as their configuration: nothing is served, and what is gone is gone after a second
QUICK = {"prometheusMetricsPort": 0, "controllers": {"node": {"leakGracePeriod": "1s"}}}


def role_of(rules: Any) -> dict[str, Any]:
    body = [{"apiGroups": [group], "resources": resources, "verbs": verbs} for group, resources, verbs in rules]
    return {"kind": "ClusterRole", "metadata": {"name": ROLE}, "rules": body}


def change_role(kube: Cluster, rules: Any) -> None:
    kube.request("PUT", f"{RBAC}/clusterroles/{ROLE}", role_of(rules))


@contextmanager
def role(kube: Cluster, rules: Any, user: str = CONTROLLERS_USER) -> Iterator[None]:
    name = ROLE
    kube.ensure(f"{RBAC}/clusterroles", role_of(rules))
    binding = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }
    kube.ensure(f"{RBAC}/clusterrolebindings", binding)
    try:
        yield
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            kube.request("DELETE", f"{RBAC}/{kind}/{name}")


def lay_out_image(root: Path, bundle: Path) -> None:
    """The image's own file tree, as build/image/build.sh makes it."""
    (root / "opt" / "cni" / "bin").mkdir(parents=True)
    subprocess.run([ROOT / "build/install-bundle.sh", "--plain", bundle, root / "opt/cni/bin"], check=True, timeout=300)
    subprocess.run([ROOT / "build/image/tree.sh", root], check=True, timeout=60)


class Container:
    """The image's root directory over this machine's, as the kubelet would run it: mounts of its own, uid 999.

    ``bundle`` None: from the sources. ``arguments``: the manifest's, after the image's entry point. ``secrets``: a
    directory that is mounted as /calico-secrets, with root as its owner.
    """

    def __init__(
        self,
        kube: Cluster,
        directory: Path,
        environ: Mapping[str, str],
        bundle: Path | None,
        arguments: tuple[str, ...] = (),
        secrets: Path | None = None,
    ) -> None:
        self.log = directory / "log"
        self._directory = directory
        for name in ("upper", "scratch", "merged"):
            (directory / name).mkdir()
        if bundle is None:
            lay_out_sources(directory / "upper")
        else:
            lay_out_image(directory / "upper", bundle)
        account = directory / "account"
        account.mkdir()
        (account / "token").write_text("controllers-token")
        (account / "namespace").write_text("kube-system")
        shutil.copy(kube.ca, account / "ca.crt")
        setup = f"""set -e
mount -t tmpfs tmpfs {directory}/scratch
mkdir {directory}/scratch/upper {directory}/scratch/own
cp -a {directory}/upper/. {directory}/scratch/upper
cd {directory}
mount -t overlay overlay -o lowerdir=/,upperdir=scratch/upper,workdir=scratch/own {directory}/merged
mount -t proc proc {directory}/merged/proc
mount --rbind /dev {directory}/merged/dev
mount -t tmpfs tmpfs {directory}/merged/run
mkdir -p {directory}/merged{ACCOUNT} {directory}/merged/status {directory}/merged/calico-secrets
cp {account}/* {directory}/merged{ACCOUNT}
chown 999 {directory}/merged/status
{f"mount --bind -o ro {secrets} {directory}/merged/calico-secrets" if secrets else ""}
exec "$@"
"""
        self._enter = ["unshare", "--mount", "--propagation=private", "sh", "-c", setup, "sh"]
        self._inside = ["chroot", "--userspec=999:0", str(directory / "merged")]
        self.environ = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOSTNAME": "calico-kube-controllers-6d8b5",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(kube.port),
            **environ,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._enter, *self._inside, "/usr/bin/wrapper", "/usr/bin/kube-controllers", *arguments],
                env=self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def probe(self, *command: str) -> tuple[int, str]:
        """As an exec probe: in the container's mounts."""
        inside = ["nsenter", "--mount", f"--target={self.process.pid}", *self._inside, *command]
        done = subprocess.run(inside, env=self.environ, capture_output=True, text=True, timeout=60)
        return done.returncode, (done.stdout + done.stderr).strip()

    def end(self) -> int:
        """As the kubelet: SIGTERM to the entry point."""
        self.process.terminate()
        return self.process.wait(20)


@contextmanager
def container(
    kube: Cluster, environ: Mapping[str, str], bundle: Path | None, *arguments: str, secrets: Path | None = None
) -> Iterator[Container]:
    with ExitStack() as undo:
        directory = Path(tempfile.mkdtemp(prefix="cct-container-"))
        undo.callback(shutil.rmtree, directory)
        directory.chmod(0o755)
        made = Container(kube, directory, environ, bundle, arguments, secrets)
        try:
            yield made
        except BaseException:
            sys.stderr.write(made.log.read_text())
            raise
        finally:
            if made.process.poll() is None:
                os.killpg(made.process.pid, signal.SIGKILL)
                made.process.wait()


@pytest.fixture(params=["sources", pytest.param("frozen", marks=[pytest.mark.bundle, pytest.mark.slow])])
def executables(request: pytest.FixtureRequest) -> Path | None:
    """The bundle, or None: from the sources."""
    found: Path | None = request.getfixturevalue("bundle") if request.param == "frozen" else None
    return found


@pytest.mark.parametrize(
    ("arguments", "health"),
    [
        ((), ("/usr/bin/check-status",)),
        (COMPONENT, ("/usr/bin/calico", *COMPONENT, "kube-controllers-health")),
    ],
    ids=["v3.32", "newer"],
)
def test_on_kubernetes(
    kube: Cluster, executables: Path | None, arguments: tuple[str, ...], health: tuple[str, ...]
) -> None:
    """Without rights to Leases and Events, which upstream's role does not give."""
    store = kube.store()
    spec = {"cidr": "203.0.113.0/28", "allowedUses": ["LoadBalancer"], "blockSize": 30, "nodeSelector": "all()"}
    store.commit([Write.put(ResourceKey("IPPool", "lb"), {"metadata": {"name": "lb"}, "spec": spec})], soon())
    port = {"metadata": {"name": "default"}, "spec": {"prometheusMetricsPort": 0, "controllers": {"node": {}}}}
    store.commit([Write.put(SETTINGS, port)], soon())
    body = {"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}
    services = "/api/v1/namespaces/space/services"
    kube.request("POST", services, {"kind": "Service", "apiVersion": "v1", **body})
    environ = {"ENABLED_CONTROLLERS": "node,loadbalancer", "DATASTORE_TYPE": "kubernetes"}
    try:
        with role(kube, OF_KUBERNETES), container(kube, environ, executables, *arguments) as run:
            until(lambda: run.probe(*health, "-r") == (0, "Ready"), "the readiness probe", 90)
            assert run.probe(*health, "-l") == (0, "Ready")
            until(lambda: kube.request("GET", f"{services}/web")["status"]["loadBalancer"].get("ingress"), "it", 60)
            assert "without a lease" in run.log.read_text()
            assert run.end() == 0
            assert "Traceback" not in run.log.read_text()
    finally:
        kube.request("DELETE", f"{services}/web")
        store.close()


def put_pod_and_node(kube: Cluster, store: EtcdStore) -> tuple[ResourceKey, ResourceKey]:
    """A pod with its endpoint as the CNI plugin stores it, and a Node whose Kubernetes node is not there."""
    kube.create_node("n1", metadata={"labels": {"zone": "a"}})
    kube.create_pod("space", "web", "n1", labels={"app": "web"})
    status = {"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}}
    merge = "application/merge-patch+json"
    kube.request("PATCH", "/api/v1/namespaces/space/pods/web/status", status, content_type=merge)
    endpoint, departed = ResourceKey("WorkloadEndpoint", "n1-k8s-web-eth0", "space"), ResourceKey("Node", "departed")
    spec = {"interfaceName": "cali1", "node": "n1", "orchestrator": "k8s", "pod": "web", "endpoint": "eth0"}
    metadata = {"name": endpoint.name, "namespace": "space", "labels": {}}
    refs = {"orchRefs": [{"orchestrator": "k8s", "nodeName": "departed"}]}
    store.commit([Write.put(endpoint, {"kind": endpoint.kind, "metadata": metadata, "spec": spec})], soon())
    store.commit([Write.put(departed, {"kind": "Node", "metadata": {"name": "departed"}, "spec": refs})], soon())
    return endpoint, departed


def labels_of(store: EtcdStore, key: ResourceKey) -> Any:
    found = store.get(key, soon())
    return {} if found is None else found.value["metadata"]["labels"]


@contextmanager
def plain_etcd(kube: Cluster) -> Iterator[tuple[EtcdConfig, None]]:
    yield EtcdConfig(endpoints=(f"http://127.0.0.1:{kube.etcd_port}",)), None


@contextmanager
def etcd_with_certificates(directory: Path, mode: str) -> Iterator[tuple[EtcdConfig, Path]]:
    """An etcd that only clients with a certificate may use, and what the Secret has for them."""
    authority = make_authority(directory / "ca")
    served, served_key = authority.issue("server", "etcd-server", "serverAuth", "IP:127.0.0.1")
    certificate, key = authority.issue("client", "calico", "clientAuth")
    secrets = directory / "secrets"
    secrets.mkdir()
    for name, source in zip(SECRETS, (authority.certificate, certificate, key), strict=True):
        subprocess.run(["install", "-m", mode, source, secrets / name], check=True, timeout=20)
    files = ["--cert-file", str(served), "--key-file", str(served_key), "--trusted-ca-file", str(authority.certificate)]
    with single(arguments=[*files, "--client-cert-auth"], scheme="https") as server:
        ours = {"ca_file": authority.certificate, "cert_file": certificate, "key_file": key}
        yield EtcdConfig(endpoints=tuple(server.urls), **{name: str(path) for name, path in ours.items()}), secrets


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "certificates"])
@pytest.mark.parametrize("version", ON_ETCD)
def test_on_etcd(kube: Cluster, executables: Path | None, version: str, secured: bool, tmp_path: Path) -> None:
    """hostNetwork, TLS variables that are empty or name the Secret's files, no DATASTORE_TYPE; v3.0: no probes, an old
    name of a controller, a role without the right to get.
    """
    rules, enabled, mode = ON_ETCD[version]
    policies = "/apis/networking.k8s.io/v1/namespaces/space/networkpolicies"

    def stored(kind: str, name: str, namespace: str = "") -> Any:
        found = store.get(ResourceKey(kind, name, namespace), soon())
        return None if found is None else found.value

    with etcd_with_certificates(tmp_path, mode) if secured else plain_etcd(kube) as (config, secrets):
        store = EtcdStore(config)
        wipe(store)
        try:
            store.commit([Write.put(SETTINGS, {"metadata": {"name": "default"}, "spec": QUICK})], soon())
            endpoint, departed = put_pod_and_node(kube, store)
            kube.request("POST", policies, POLICY)
            account = {"kind": "ServiceAccount", "metadata": {"name": "bot"}}
            kube.ensure("/api/v1/namespaces/space/serviceaccounts", account)
            ca, certificate, key = (f"/calico-secrets/{name}" if secured else "" for name in SECRETS)
            environ = {
                "ETCD_ENDPOINTS": ",".join(config.endpoints),
                "ETCD_CA_CERT_FILE": ca,
                "ETCD_KEY_FILE": key,
                "ETCD_CERT_FILE": certificate,
                "ENABLED_CONTROLLERS": enabled,
            }
            with role(kube, rules), container(kube, environ, executables, secrets=secrets) as run:
                until(lambda: stored("Profile", "kns.space"), "the namespace's profile", 90)
                until(lambda: run.probe("/usr/bin/check-status", "-r") == (0, "Ready"), "ready", 60)
                if "serviceaccount" in enabled:
                    until(lambda: stored("Profile", "ksa.space.bot"), "the account's profile", 60)
                until(lambda: stored("NetworkPolicy", "knp.default.web", "space"), "the policy", 60)
                until(lambda: labels_of(store, endpoint).get("app") == "web", "the pod's labels", 60)
                until(lambda: store.get(departed, soon()) is None, "the Node without a node goes", 120)
                kube.request("DELETE", f"{policies}/web")
                until(lambda: not stored("NetworkPolicy", "knp.default.web", "space"), "the policy goes", 60)
                assert run.end() == 0
                assert "Traceback" not in run.log.read_text()
        finally:
            kube.request("DELETE", "/api/v1/nodes/n1")
            kube.delete_pod(kube.read_pod("space", "web"))
            wipe(store)
            store.close()


def test_a_role_that_has_policies_only_in_their_old_group(kube: Cluster, executables: Path | None) -> None:
    """As v3.0's is: what is missing is named, all other controllers work; given later, it counts at once."""
    store = EtcdStore(EtcdConfig(endpoints=(f"http://127.0.0.1:{kube.etcd_port}",)))
    wipe(store)
    policies = "/apis/networking.k8s.io/v1/namespaces/space/networkpolicies"
    environ = {"ETCD_ENDPOINTS": f"http://127.0.0.1:{kube.etcd_port}", "ENABLED_CONTROLLERS": ON_ETCD["v3.0"][1]}
    try:
        store.commit([Write.put(SETTINGS, {"metadata": {"name": "default"}, "spec": QUICK})], soon())
        endpoint, departed = put_pod_and_node(kube, store)
        kube.ensure(policies, POLICY)
        with role(kube, OF_V3_0[:-1]), container(kube, environ, executables) as run:
            until(lambda: store.get(ResourceKey("Profile", "kns.space"), soon()), "the namespace's profile", 90)
            until(lambda: labels_of(store, endpoint).get("app") == "web", "the pod's labels", 60)
            until(lambda: store.get(departed, soon()) is None, "the Node without a node goes", 120)
            until(lambda: "policy does nothing before it can read what it needs" in run.log.read_text(), "it says so")
            said = run.log.read_text()
            assert 'cannot list resource "networkpolicies" in API group "networking.k8s.io"' in said
            assert said.count("policy does nothing before it can read") == 1
            assert run.probe("/usr/bin/check-status", "-r") == (0, "Ready")
            assert store.get(ResourceKey("NetworkPolicy", "knp.default.web", "space"), soon()) is None
            change_role(kube, OF_V3_0)
            until(lambda: store.get(ResourceKey("NetworkPolicy", "knp.default.web", "space"), soon()), "it", 120)
            assert run.end() == 0
            assert "Traceback" not in run.log.read_text()
    finally:
        kube.request("DELETE", f"{policies}/web")
        kube.request("DELETE", "/api/v1/nodes/n1")
        kube.delete_pod(kube.read_pod("space", "web"))
        wipe(store)
        store.close()


# the environment of v3.0's container calico-node, without what says where it runs
AGENT_OF_V3_0 = {
    "CALICO_NETWORKING_BACKEND": "bird",
    "CLUSTER_TYPE": "k8s,bgp",
    "CALICO_DISABLE_FILE_LOGGING": "true",
    "CALICO_K8S_NODE_REF": "node1",
    "FELIX_DEFAULTENDPOINTTOHOSTACTION": "ACCEPT",
    "CALICO_IPV4POOL_CIDR": "192.168.0.0/16",
    "CALICO_IPV4POOL_IPIP": "Always",
    "FELIX_IPV6SUPPORT": "false",
    "FELIX_LOGSEVERITYSCREEN": "info",
    "FELIX_IPINIPMTU": "1440",
    "ETCD_CA_CERT_FILE": "",
    "ETCD_KEY_FILE": "",
    "ETCD_CERT_FILE": "",
    "IP": "autodetect",
    "FELIX_HEALTHENABLED": "true",
}
NODES_OF_V3_0 = (("", ["pods", "nodes"], ["get"]),)


@pytest.mark.bird
@pytest.mark.slow
def test_the_agent_of_v3_0(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> None:
    """Its environment and its role, which allows to get pods and nodes: both probes of that manifest answer."""
    add_card(host_ns, "eth0", "10.0.0.5/24")
    directories = {"CALICO_RUN_DIR": "run", "CALICO_STATE_DIR": "state", "CALICO_LOG_DIR": "log"}
    program = ["nsenter", f"--net={host_ns.path}", sys.executable, "-m", "cni_calico.nodeagent.main"]

    def answer(page: str) -> str:
        code = (
            f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:9099/{page}', timeout=20).read().decode())"
        )
        argv = ["nsenter", f"--net={host_ns.path}", sys.executable, "-c", code]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout.strip()

    with (
        etcd_in(host_ns, tmp_path),
        kube_node(kube, host_ns, tmp_path, ETCD) as node,
        role(kube, NODES_OF_V3_0, NODE_USER),
    ):
        # which the controllers have made
        node.apply("Profile", "kns.space", {"labelsToApply": {"pcns.projectcalico.org/name": "space"}})
        environ = {
            **AGENT_OF_V3_0,
            **{name: str(tmp_path / below) for name, below in directories.items()},
            "PATH": os.environ["PATH"],
            "HOSTNAME": "node1",
            "ETCD_ENDPOINTS": "http://127.0.0.1:2379",
            "KUBECONFIG": kube.kubeconfig("node-token"),
            "CALICO_NODENAME_FILE": str(tmp_path / "state" / "nodename"),
            "CALICO_BIRD_CONFIG_DIR": str(tmp_path / "bird"),
        }
        with (tmp_path / "agent.log").open("wb") as log:
            agent = subprocess.Popen([*program, "run"], cwd=ROOT, env=environ, stderr=log)
        try:
            until(lambda: answer("readiness") == "ok", "the readiness probe", 180, pause_s=0.2)
            assert answer("liveness") == "ok"
        finally:
            agent.terminate()
            agent.wait(60)
    said = (tmp_path / "agent.log").read_text()
    assert "Traceback" not in said
