"""Agents' tokens at a relay, on a real API server: for relays only, for the API server, and revoked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.relayed.targets import RelayTargets
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied
from cni_calico.model.access import RelayAccess
from cni_calico.relay.connections import Limits
from cni_calico.relay.tokens import AUDIENCE, Accepted
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.relays import RunningRelay, make_certificates

pytestmark = pytest.mark.kubernetes
NODES = "/api/v1/nodes"
ACCOUNT = "/api/v1/namespaces/kube-system/serviceaccounts/calico-node"
USERS = frozenset({"system:serviceaccount:kube-system:calico-node"})
SHORT = Limits(review_s=0.5, watch_review_s=1.0)


@pytest.fixture
def ask_token(kube: Cluster) -> Callable[..., str]:
    """Tokens as the kubelet asks for them: for an audience ("": the API server), bound to a pod."""
    kube.ensure_namespace("kube-system")
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "calico-node"}}
    kube.ensure(ACCOUNT.rpartition("/")[0], body)

    def ask(audience: str = "", pod: Any = None) -> str:
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if audience:
            spec["audiences"] = [audience]
        if pod is not None:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(kube.request("POST", f"{ACCOUNT}/token", request)["status"]["token"])

    return ask


@pytest.fixture
def start(kube: Cluster, tmp_path: Path) -> Iterator[Callable[..., RunningRelay]]:
    make_certificates(tmp_path)
    running: list[RunningRelay] = []

    def begin(*, limits: Limits | None = None, **accepted: Any) -> RunningRelay:
        running.append(RunningRelay(kube.api(), tmp_path, accepted=Accepted(USERS, **accepted), limits=limits))
        until(lambda: running[-1].relay.cache.synced, "everything to be read", 60)
        return running[-1]

    yield begin
    for each in running:
        each.kill()


def client_of(relay: RunningRelay, tmp_path: Path, text: str) -> Any:
    """As an agent that is told by FELIX_TYPHATOKENFILE where its token is."""
    file = tmp_path / f"token-{hash(text)}"  # it is read with the first request
    file.write_text(text + "\n")
    access = RelayAccess(address=f"127.0.0.1:{relay.port}", ca_file=str(tmp_path / "ca.crt"), token_file=str(file))
    nobody: Any = None  # the API server is not asked for anything
    return RelayTargets(access, nobody).next(Deadline.after(5))[1]


def answer(relay: RunningRelay, tmp_path: Path, text: str) -> str:
    client = client_of(relay, tmp_path, text)
    try:
        client.send(ApiRequest("GET", NODES, "list"), Deadline.after(10))
        return ""
    except DatastoreDenied as e:
        return str(e)
    finally:
        client.close()


def test_a_token_for_relays_is_good_for_nothing_else_and_the_setting_ends_the_others(
    kube: Cluster, ask_token: Callable[..., str], start: Callable[..., RunningRelay], tmp_path: Path
) -> None:
    own, api = ask_token(AUDIENCE), ask_token()
    both, strict = start(), start(api_tokens=False)
    assert [answer(both, tmp_path, text) for text in (own, api)] == ["", ""]
    assert answer(strict, tmp_path, own) == ""
    assert "this relay takes tokens for calico-typha only" in answer(strict, tmp_path, api)
    for relay in (both, strict):
        assert answer(relay, tmp_path, ask_token("vault"))
        assert "does not accept this token" in answer(relay, tmp_path, own[:-8] + "AAAAAAAA")
    stolen = kube.api(own)
    with pytest.raises(DatastoreDenied):
        stolen.send(ApiRequest("GET", NODES, "list"), Deadline.after(5))
    stolen.close()
    pod = kube.create_pod("kube-system", "gone", "n1", spec={"serviceAccountName": "calico-node"})
    bound = ask_token(AUDIENCE, pod)
    kube.delete_pod(pod)
    assert "does not accept this token" in answer(both, tmp_path, bound)


@pytest.mark.slow  # the API server itself remembers a token that it accepted for 10 s
def test_a_revoked_token_ends_an_open_watch_and_is_refused(
    kube: Cluster, ask_token: Callable[..., str], start: Callable[..., RunningRelay], tmp_path: Path
) -> None:
    relay = start(limits=SHORT)
    pod = kube.create_pod("kube-system", "agent", "n1", spec={"serviceAccountName": "calico-node"})
    bound, other = ask_token(AUDIENCE, pod), ask_token(AUDIENCE)
    stays, ends = (client_of(relay, tmp_path, text) for text in (other, bound))
    watches = []
    for client in (stays, ends):
        version = client.send(ApiRequest("GET", NODES, "list"), Deadline.after(10)).document["metadata"][
            "resourceVersion"
        ]
        watches.append(client.stream(f"{NODES}?watch=1&resourceVersion={version}", Deadline.after(10), "watch"))
    until(lambda: relay.relay.server.streaming == 2)
    asked = relay.relay.reviews.reviews
    until(lambda: relay.relay.reviews.reviews >= asked + 4, "reviews of open watches", 30)
    assert relay.relay.server.streaming == 2
    kube.delete_pod(pod)
    until(lambda: relay.relay.server.streaming == 1, "the end of its watch", 40)
    assert relay.relay.server.numbers.dropped["revoked"] == 1
    assert "does not accept this token" in answer(relay, tmp_path, bound)
    assert answer(relay, tmp_path, other) == ""
    for each in (*watches, stays, ends):
        each.close()


def test_the_agents_manifest_mounts_such_a_token() -> None:
    documents = yaml.safe_load_all((ROOT / "manifests" / "calico.yaml").read_text())
    [daemons] = [one for one in documents if one and one["kind"] == "DaemonSet"]
    spec = daemons["spec"]["template"]["spec"]
    [container] = spec["containers"]
    environ = {one["name"]: one.get("value") for one in container["env"]}
    [volume] = [one for one in spec["volumes"] if one["name"] == "relay-token"]
    [source] = volume["projected"]["sources"]
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "relay-token"]
    assert environ["FELIX_TYPHATOKENFILE"] == f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
    assert source["serviceAccountToken"]["audience"] == AUDIENCE


def test_without_the_file_no_other_token_stands_in(tmp_path: Path, kube: Cluster) -> None:
    make_certificates(tmp_path)
    access = RelayAccess("127.0.0.1:1", ca_file=str(tmp_path / "ca.crt"), token_file=str(tmp_path / "missing"))
    direct = kube.api()
    client = RelayTargets(access, direct).next(Deadline.after(5))[1]
    with pytest.raises(DatastoreDenied, match=r"cannot read the relay's token .*missing"):
        client.send(ApiRequest("GET", NODES, "list"), Deadline.after(5))
    direct.close()
