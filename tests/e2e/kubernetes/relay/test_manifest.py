"""calico-typha.yaml on a real API server: its role is enough for a relay and for nothing else, and so are its names."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.relayed.targets import RelayTargets
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreUnsupported
from cni_calico.model.access import API_GROUP, NATIVE_GROUP, RelayAccess
from cni_calico.relay.settings import accepted_of, parse_relay_settings
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster, native_cluster
from tests.e2e.kubernetes.definitions import cluster_wide_policies
from tests.e2e.relays import RunningRelay, make_certificates

pytestmark = pytest.mark.kubernetes
MANIFEST = ROOT / "manifests" / "calico-typha.yaml"
# API group -> its manifest
MANIFESTS = {API_GROUP: MANIFEST, NATIVE_GROUP: ROOT / "manifests" / "calico-typha-v3.yaml"}
SCRIPT = ROOT / "manifests" / "calico-typha-certificates.sh"


def documents(manifest: Path = MANIFEST) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(manifest.read_text()) if found]


def token(kube: Cluster, namespace: str, account: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    return str(kube.request("POST", path, request)["status"]["token"])


def account(kube: Cluster, namespace: str, name: str) -> str:
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    kube.ensure(f"/api/v1/namespaces/{namespace}/serviceaccounts", body)
    return token(kube, namespace, name)


def used(kube: Cluster, since: int) -> set[tuple[str, str]]:
    """(verb, resource) of the relay's requests."""
    return {
        (event["verb"], event["objectRef"]["resource"])
        for event in kube.audited(since)
        if event.get("user", {}).get("username") == "system:serviceaccount:kube-system:calico-typha"
        and event.get("responseStatus", {}).get("code") != 404
    }


@pytest.mark.parametrize("group", MANIFESTS)
def test_the_api_server_takes_it_and_its_role_is_enough_for_a_relay_and_for_nothing_else(
    request: pytest.FixtureRequest, group: str, tmp_path: Path
) -> None:
    kube: Cluster = native_cluster() if group == NATIVE_GROUP else request.getfixturevalue("kube")
    manifest = MANIFESTS[group]
    kube.ensure_namespace("kube-system")
    kube.kubectl("apply", "-f", str(manifest))
    own, agent, other = (
        account(kube, *names)
        for names in (("kube-system", "calico-typha"), ("kube-system", "calico-node"), ("default", "somebody"))
    )
    [deployment] = [found for found in documents(manifest) if found["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    settings, without = parse_relay_settings({one["name"]: one["value"] for one in container["env"]})
    assert without == ()
    make_certificates(tmp_path)
    [role] = [found for found in documents(manifest) if found["kind"] == "ClusterRole"]
    granted = {(verb, one) for rule in role["rules"] for verb in rule["verbs"] for one in rule["resources"]}
    since = len(kube.audited())
    with cluster_wide_policies(kube, "v1alpha2"):
        relay = RunningRelay(kube.api(own), tmp_path, accepted=accepted_of(settings), group=group)
        try:
            until(lambda: relay.relay.cache.synced, "everything to be read", 60)
            assert relay.relay.cut_off.troubles == {}
            access = RelayAccess(address=f"127.0.0.1:{relay.port}", ca_file=str(tmp_path / "ca.crt"))
            doing = "list"
            client = RelayTargets(access, kube.api(agent)).next(Deadline.after(5))[1]
            assert "items" in client.send(ApiRequest("GET", "/api/v1/nodes", doing), Deadline.after(10)).document
            other_group = API_GROUP if group == NATIVE_GROUP else NATIVE_GROUP
            with pytest.raises(DatastoreUnsupported, match="this relay follows the other API group"):
                client.send(ApiRequest("GET", f"/apis/{other_group}/tiers", doing), Deadline.after(10))
            client.close()
            client = RelayTargets(access, kube.api(other)).next(Deadline.after(5))[1]
            with pytest.raises(DatastoreDenied, match="system:serviceaccount:default:somebody may not use this relay"):
                client.send(ApiRequest("GET", "/api/v1/nodes", doing), Deadline.after(10))
            client.close()
            until(lambda: granted <= used(kube, since), "every right is used", 60)
        finally:
            relay.kill()
    assert used(kube, since) == granted
    api = kube.api(own)
    for path in ("/api/v1/secrets", "/api/v1/configmaps", f"/apis/{group}/ipamhandles"):
        with pytest.raises(DatastoreDenied):
            api.send(ApiRequest("GET", path, "list"), Deadline.after(5))
    with pytest.raises(DatastoreDenied):
        api.send(ApiRequest("DELETE", "/api/v1/nodes/n1", "delete"), Deadline.after(5))
    api.close()


def test_its_service_leads_to_its_pods() -> None:
    found = {one["kind"]: one for one in documents()}
    template = found["Deployment"]["spec"]["template"]
    [port] = found["Service"]["spec"]["ports"]
    [container] = template["spec"]["containers"]
    assert port["name"] == port["targetPort"] == container["ports"][0]["name"] == "calico-typha"
    assert found["Service"]["spec"]["selector"] == template["metadata"]["labels"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert template["spec"]["serviceAccountName"] == found["ServiceAccount"]["metadata"]["name"]


def test_the_certificates_that_its_script_makes_are_accepted(kube: Cluster, tmp_path: Path) -> None:
    done = subprocess.run([SCRIPT, "30"], capture_output=True, text=True, check=True, timeout=60)
    secret, config = yaml.safe_load_all(done.stdout)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(base64.b64decode(secret["data"][name]))
    (tmp_path / "ca.crt").write_text(config["data"]["ca.crt"])
    command = ["openssl", "verify", "-CAfile", tmp_path / "ca.crt", "-verify_hostname", "calico-typha.kube-system.svc"]
    verified = subprocess.run([*command, tmp_path / "tls.crt"], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stderr
    kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=done.stdout)
    [deployment] = [found for found in documents() if found["kind"] == "Deployment"]
    [volume] = deployment["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
