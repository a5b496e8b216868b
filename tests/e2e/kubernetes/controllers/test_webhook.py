"""calico-webhooks.yaml at a real API server: its roles are enough, what it denies is not written, and what happens
while it is away.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni_calico.controllers.admission.certificates import DAY_S, make_certificate, names_server
from cni_calico.controllers.admission.run import WebhookFlags, WebhookProcess
from cni_calico.ctl.main import run as run_calicoctl
from cni_calico.daemon.stopping import Stopping
from cni_calico.errors import DatastoreError
from cni_calico.model.access import NATIVE_GROUP
from cni_calico.nodeagent.status.file import read_status
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, native_cluster
from tests.e2e.kubernetes.node import kube_node
from tests.e2e.kubernetes.programs import agent_command, agent_environ, controllers, run_agent
from tests.e2e.kubernetes.roles import RBAC, documents, rights, with_agent_roles
from tests.fixtures.kubernetes import NAMESPACE
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.kubernetes

HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
HOOK = f"{HOOKS}/calico-webhooks"
ACCOUNT = "system:serviceaccount:kube-system:calico-webhooks"
PLACES = {
    "ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts",
    "Service": "/api/v1/namespaces/kube-system/services",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/kube-system/roles",
    "RoleBinding": f"{RBAC}/namespaces/kube-system/rolebindings",
    "Deployment": "/apis/apps/v1/namespaces/kube-system/deployments",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/kube-system/poddisruptionbudgets",
}
SECRETS = "/api/v1/namespaces/kube-system/secrets"
GNP = "globalnetworkpolicies.projectcalico.org"


class WebhookOfTest:
    """One that runs in this process, with the rights of the manifest's service account."""

    def __init__(self, kube: Cluster, directory: Path, flags: WebhookFlags) -> None:
        path = f"{PLACES['ServiceAccount']}/calico-webhooks/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        token = kube.request("POST", path, asked)["status"]["token"]
        config = directory / "webhook.kubeconfig"
        config.write_text(Path(kube.kubeconfig()).read_text().replace("admin-token", token))
        self._stopping = Stopping()
        self.process = WebhookProcess(flags, {"KUBECONFIG": str(config)}, self._stopping)
        self._thread = threading.Thread(target=self.process.run)
        self._thread.start()
        self.port: int = until(lambda: self.process.server.port, "it serves", 60)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.fixture
def applied() -> Iterator[Cluster]:
    """A cluster with everything of the manifest but its configuration; alice and mallory may write any policy as such,
    and alice the global ones of tier sec.
    """
    kube = native_cluster()
    kube.empty(NATIVE_ROOT)
    kube.ensure_namespace(NAMESPACE)
    for document in documents("calico-webhooks.yaml", *PLACES):
        kube.ensure(PLACES[document["kind"]], document)
    rules = {
        "writers": [rule(["globalnetworkpolicies", "networkpolicies"], ["*"])],
        "sec": [rule(["tiers"], ["get"], "sec"), rule(["tier.globalnetworkpolicies"], ["*"], "sec.*")],
    }
    head = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    for name, users in (("writers", ["alice", "mallory"]), ("sec", ["alice"])):
        kube.ensure(
            f"{RBAC}/clusterroles", {**head, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules[name]}
        )
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user} for user in users]
        binding = {**head, "kind": "ClusterRoleBinding", "metadata": {"name": name}, "roleRef": role}
        kube.ensure(f"{RBAC}/clusterrolebindings", {**binding, "subjects": subjects})
    for name in ("sec", "ops"):
        body = {"apiVersion": NATIVE_GROUP, "kind": "Tier", "metadata": {"name": name}, "spec": {"order": 5}}
        kube.request("POST", f"{NATIVE_ROOT}/tiers", body)
    body = {"apiVersion": NATIVE_GROUP, "kind": "ClusterInformation", "metadata": {"name": "default"}}
    kube.request("POST", f"{NATIVE_ROOT}/clusterinformations", {**body, "spec": {"datastoreReady": True}})
    yield kube
    for path in (HOOK, f"{SECRETS}/calico-webhooks-tls"):
        remove(kube, path)
    for document in documents("calico-webhooks.yaml", *PLACES):
        remove(kube, f"{PLACES[document['kind']]}/{document['metadata']['name']}")
    for name in ("writers", "sec"):
        remove(kube, f"{RBAC}/clusterroles/{name}")
        remove(kube, f"{RBAC}/clusterrolebindings/{name}")
    kube.empty(NATIVE_ROOT)


def remove(kube: Cluster, path: str) -> None:
    try:
        kube.request("DELETE", path)
    except DatastoreError as e:
        assert "not found" in str(e)


def rule(resources: list[str], verbs: list[str], *names: str) -> dict[str, Any]:
    named = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": ["projectcalico.org"], "resources": resources, "verbs": verbs, **named}


@pytest.fixture
def watched(applied: Cluster, tmp_path: Path) -> Iterator[tuple[Cluster, WebhookOfTest]]:
    with guarded(applied, tmp_path) as webhook:
        yield applied, webhook


@contextmanager
def guarded(applied: Cluster, tmp_path: Path) -> Iterator[WebhookOfTest]:
    """The API server asks a webhook at this host's loopback address, where no Service leads."""
    pair = make_certificate(["localhost"], DAY_S)
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    webhook = WebhookOfTest(
        applied, tmp_path, WebhookFlags(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"), port=0, level="none")
    )
    try:
        [configuration] = documents("calico-webhooks.yaml", "ValidatingWebhookConfiguration")
        for hook in configuration["webhooks"]:
            service = hook["clientConfig"].pop("service")
            hook["clientConfig"]["url"] = f"https://localhost:{webhook.port}{service['path']}"
            hook["clientConfig"]["caBundle"] = base64.b64encode(pair.certificate).decode()
        applied.request("POST", HOOKS, configuration)
        # the API server works with a new configuration some moments later
        until(lambda: "forbidden" in write(applied, "mallory", policy("probe", "ops")), "it is asked", 60)
        yield webhook
    finally:
        webhook.stop()


def policy(name: str, tier: str, **metadata: str) -> dict[str, Any]:
    kind = "NetworkPolicy" if metadata else "GlobalNetworkPolicy"
    return {
        "apiVersion": NATIVE_GROUP, "kind": kind, "metadata": {"name": name, **metadata}, "spec": {"tier": tier}
    }  # fmt: skip


def write(kube: Cluster, user: str, *objects: dict[str, Any]) -> str:
    items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return kube.kubectl("apply", *([f"--as={user}"] if user else []), "-f", "-", stdin=json.dumps(items), check=False)


def names(kube: Cluster) -> dict[str, str]:
    """policy -> tier"""
    items = kube.request("GET", f"{NATIVE_ROOT}/globalnetworkpolicies")["items"]
    return {each["metadata"]["name"]: each["spec"]["tier"] for each in items}


def test_rights_on_tiers_decide_who_writes(watched: tuple[Cluster, WebhookOfTest]) -> None:
    kube, _ = watched
    said = write(kube, "alice", policy("a1", "sec"), policy("a2", "ops"), policy("n1", "sec", namespace=NAMESPACE))
    denied = 'admission webhook "tiered-rbac.projectcalico.org" denied the request: Authorization failed: '
    who = 'User "alice" cannot create'
    assert f'{denied}{GNP} "a2" is forbidden: {who} {GNP} in tier "ops" (user cannot get tier)' in said
    assert f'{who} networkpolicies.projectcalico.org in tier "sec" and namespace "{NAMESPACE}"' in said
    assert names(kube) == {"a1": "sec"}
    assert 'Tier "nowhere" does not exist' in write(kube, "", policy("o1", "ops"), policy("x1", "nowhere"))
    assert names(kube) == {"a1": "sec", "o1": "ops"}
    moved = write(kube, "alice", policy("a1", "ops"))
    assert 'cannot update globalnetworkpolicies.projectcalico.org in tier "ops"' in moved
    assert "for old tier" in write(kube, "alice", policy("o1", "sec"))
    swept = kube.kubectl("delete", GNP, "--all", "--as=alice", check=False)
    assert '"o1" is forbidden: User "alice" cannot delete' in swept
    assert names(kube) == {"o1": "ops"}
    path = f"{NATIVE_ROOT}/globalnetworkpolicies"
    kube.request("DELETE", path)  # a collection, whose objects are asked about one by one
    assert names(kube) == {}


def test_only_calicos_programs_write_cluster_information(
    watched: tuple[Cluster, WebhookOfTest], capsys: pytest.CaptureFixture[str]
) -> None:
    kube, _ = watched
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}
    assert run_calicoctl(["datastore", "migrate", "lock"], environ) == 1
    said = capsys.readouterr().err
    assert "ClusterInformation is a read-only resource (user: admin)" in said
    account = "system:serviceaccount:kube-system:calico-node"
    locked = '{"spec": {"datastoreReady": false}}'
    words = ("patch", "clusterinformations.projectcalico.org", "default", "--type=merge", "-p", locked)
    kube.kubectl(*words, f"--as={account}", "--as-group=system:masters")
    assert kube.request("GET", f"{NATIVE_ROOT}/clusterinformations/default")["spec"] == {"datastoreReady": False}


def test_while_it_is_away_no_policy_is_written_and_everything_else_is(
    watched: tuple[Cluster, WebhookOfTest], capsys: pytest.CaptureFixture[str]
) -> None:
    kube, webhook = watched
    webhook.stop()
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}
    kube.request("POST", f"{NATIVE_ROOT}/globalnetworksets", {
        "apiVersion": NATIVE_GROUP, "kind": "GlobalNetworkSet", "metadata": {"name": "set"}, "spec": {}
    })  # fmt: skip
    with pytest.raises(DatastoreError, match=r'failed calling webhook "tiered-rbac\.'):
        kube.request("POST", f"{NATIVE_ROOT}/globalnetworkpolicies", policy("a1", "sec"))
    # what only may be asked, is not missed: calicoctl locks
    assert run_calicoctl(["datastore", "migrate", "lock"], environ) == 0
    capsys.readouterr()
    assert names(kube) == {}


@pytest.mark.netns
@pytest.mark.slow
def test_everybody_while_it_is_there_away_and_back(
    applied: Cluster, host_ns: Namespace, pod_ns: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node's agent, the controllers, calicoctl, kubectl and the plugin, with the rights of calico-v3.yaml: only who
    writes policies waits for it.
    """
    kube = applied
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}
    named = {"CALICO_API_GROUP": NATIVE_GROUP, "DATASTORE_TYPE": "kubernetes", "ENABLED_CONTROLLERS": "node"}
    set_of = {"apiVersion": NATIVE_GROUP, "kind": "GlobalNetworkSet", "spec": {"nets": ["192.0.2.0/24"]}}

    def calicoctl(path: Path, document: dict[str, Any]) -> tuple[int, str]:
        path.write_text(json.dumps(document))
        capsys.readouterr()
        return run_calicoctl(["apply", "-f", str(path)], environ), capsys.readouterr().err

    def is_judged(pool: str) -> bool:
        found = kube.request("GET", f"{NATIVE_ROOT}/ippools/{pool}")
        conditions = found.get("status", {}).get("conditions") or [{}]
        return bool(found["metadata"].get("finalizers")) and conditions[0].get("reason") == "OK"

    with (
        with_agent_roles(kube, "calico-v3.yaml"),
        rights(kube, "calico-v3.yaml"),
        kube_node(kube, host_ns, tmp_path) as node,
        guarded(kube, tmp_path) as webhook,
        controllers(kube, tmp_path / "controllers", **named) as process,
    ):
        settings = {**agent_environ(kube, tmp_path), "CALICO_API_GROUP": NATIVE_GROUP}
        run_agent(host_ns, settings, "-startup")
        until(lambda: process.check_status() == (0, "Ready"), "the controllers are ready", 90)
        with open(tmp_path / "agent.log", "wb") as log:
            agent = subprocess.Popen([*agent_command(host_ns), "-felix"], env=settings, stderr=log)

        def in_force(records: int) -> bool:
            said = read_status(settings["CALICO_RUN_DIR"]).get("policing", {})
            return (said.get("counts", {}).get("records"), said.get("problems")) == (records, [])

        try:
            for number, phase in enumerate(("there", "away", "back")):
                if phase == "away":
                    webhook.stop()
                if phase == "back":
                    webhook = started_again(kube, tmp_path, webhook)
                is_there = phase != "away"
                # who writes policies
                said = write(kube, "alice", policy(f"k-{phase}", "sec"))
                assert ("created" in said) == is_there, said
                code, said = calicoctl(tmp_path / "p.json", policy(f"c-{phase}", "sec"))
                assert code == (0 if is_there else 1), said
                if not is_there:
                    assert "webhook tiered-rbac.projectcalico.org does not answer" in said
                    assert "nothing was written" in said
                assert names(kube).keys() == {
                    f"{who}-{each}" for who in "kc" for each in ("there", "back")[: number or 1]
                }
                # what is in force stays, and what is written comes
                until(partial(in_force, len(names(kube))), f"the policies are in force, {phase}", 90)
                # everybody else
                assert calicoctl(tmp_path / "s.json", {**set_of, "metadata": {"name": f"s-{phase}"}})[0] == 0
                node.apply("IPPool", f"p-{phase}", {"cidr": f"10.9{number}.0.0/24", "blockSize": 28})
                until(partial(is_judged, f"p-{phase}"), f"the controllers see a pool, {phase}", 90)
                run_agent(host_ns, settings, "-startup")
                kube.create_pod(node.namespace, f"web-{number}", node.nodename)
                for command in ("ADD", "DEL"):
                    reply = node.pod_call(command, f"web-{number}", f"c{number}" * 32, pod_ns.path)
                    assert reply.ok, (phase, reply.document)
            assert agent.poll() is None
        finally:
            agent.terminate()
            agent.wait(30)
            webhook.stop()
        assert process.end() == 0


def started_again(kube: Cluster, directory: Path, before: WebhookOfTest) -> WebhookOfTest:
    """With the same certificate, where the API server looks for it; it asks again a little later."""
    pair = str(directory / "tls.crt"), str(directory / "tls.key")
    webhook = WebhookOfTest(kube, directory, WebhookFlags(*pair, port=before.port, level="none"))
    until(lambda: "failed calling" not in write(kube, "mallory", policy("probe", "ops")), "it answers again", 60)
    return webhook


def test_its_roles_suffice_for_its_certificate(applied: Cluster, tmp_path: Path) -> None:
    kube = applied
    [configuration] = documents("calico-webhooks.yaml", "ValidatingWebhookConfiguration")
    for hook in configuration["webhooks"]:  # it is not reachable by a Service here, and must hinder nobody
        hook["failurePolicy"] = "Ignore"
        hook["timeoutSeconds"] = 1
    kube.request("POST", HOOKS, configuration)
    since = len(kube.audited())
    webhook = WebhookOfTest(kube, tmp_path, WebhookFlags(port=0, level="none"))
    try:
        secret = kube.request("GET", f"{SECRETS}/calico-webhooks-tls")
        shown = base64.b64decode(secret["data"]["tls.crt"])
        assert secret["type"] == "kubernetes.io/tls" and names_server(shown, "calico-webhooks.kube-system.svc")
        hooks = kube.request("GET", HOOK)["webhooks"]
        assert [base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in hooks] == [shown, shown]
        # deleted, it is made anew, and trusted at once
        kube.request("DELETE", f"{SECRETS}/calico-webhooks-tls")
        webhook.process.look()
        renewed = base64.b64decode(kube.request("GET", f"{SECRETS}/calico-webhooks-tls")["data"]["tls.crt"])
        assert renewed != shown
        bundle = base64.b64decode(kube.request("GET", HOOK)["webhooks"][0]["clientConfig"]["caBundle"])
        assert renewed in bundle
    finally:
        webhook.stop()
    mine = [event for event in kube.audited(since) if event.get("user", {}).get("username") == ACCOUNT]
    assert mine and all(event["responseStatus"]["code"] != 403 for event in mine)
