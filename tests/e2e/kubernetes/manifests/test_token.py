"""Tokens of the plugin's service account, given by a real API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.token import (
    Token,
    parse_lifetime_s,
    refresh_pause_s,
    render_kubeconfig,
    request_token,
)
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreUnsupported
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.access import KubernetesAccess
from cni_calico.nodeagent.keepers.token import TokenTarget, ensure_token, keep_token
from tests.e2e.kubernetes.cluster import Cluster
from tests.fakes.scripted_http import scripted


@pytest.fixture
def account(kube: Cluster) -> Cluster:
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "calico-cni-plugin"}}
    kube.ensure("/api/v1/namespaces/kube-system/serviceaccounts", body)
    return kube


def user_of(path: Path, kube: Cluster) -> str:
    import subprocess

    command = [kube.kubectl_path, f"--kubeconfig={path}", "auth", "whoami", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["status"]["userInfo"]["username"]


@pytest.mark.kubernetes
def test_a_token_and_its_kubeconfig(account: Cluster, tmp_path: Path, soon: Deadline) -> None:
    path = tmp_path / "calico-kubeconfig"
    token = ensure_token(account.api(), TokenTarget(str(path), lifetime_s=3600), Files(), soon)
    assert token.lifetime_s == 3600 and token.text not in repr(token)
    assert path.stat().st_mode & 0o777 == 0o600
    assert user_of(path, account) == "system:serviceaccount:kube-system:calico-cni-plugin"
    other = ensure_token(account.api(), TokenTarget(str(path), lifetime_s=3600), Files(), soon)
    assert other.text in path.read_text() and other.text != token.text


@pytest.mark.kubernetes
def test_a_client_goes_on_with_the_new_token(account: Cluster, tmp_path: Path, soon: Deadline) -> None:
    """What the resident server does when its token has expired: 401, read the file again, go on."""
    path = tmp_path / "calico-kubeconfig"
    path.write_bytes(render_kubeconfig(account.url, "expired-token", Path(account.ca).read_bytes()))
    api = KubernetesAPI(KubernetesAccess(kubeconfig=str(path)))
    with pytest.raises(DatastoreDenied, match="Unauthorized"):
        api.get("/api", soon, "read")
    ensure_token(account.api(), TokenTarget(str(path)), Files(), soon)
    assert api.get("/api", soon, "read")["kind"] == "APIVersions"


@pytest.mark.kubernetes
def test_refused_and_unknown_accounts(account: Cluster, soon: Deadline) -> None:
    with pytest.raises(DatastoreDenied, match="serviceaccounts/token"):
        request_token(account.api("nobody-token"), "kube-system", "calico-cni-plugin", soon)
    with pytest.raises(DatastoreUnsupported, match='"nobody" not found') as missing:
        request_token(account.api(), "kube-system", "nobody", soon)
    assert "CALICO_CNI_SERVICE_ACCOUNT" in missing.value.details


def test_while_the_account_is_forbidden_the_pods_own_token_stands_in(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Until it may be had; a renewed one follows at the next look. An account that was chosen is not replaced."""
    token = {"status": {"token": "accounts-token", "expirationTimestamp": "2026-11-21T00:00:00Z"}}
    path, own = tmp_path / "calico-kubeconfig", tmp_path / "token"
    own.write_text("pods-token\n")
    seen: list[tuple[float, str]] = []
    told: list[str] = []

    def wait(seconds: float) -> bool:
        seen.append((seconds, json.loads(path.read_text())["users"][0]["user"]["token"]))
        own.write_text("pods-second")
        return len(seen) == 3

    refusal = (403, {"message": "forbidden to us"})
    with scripted(refusal, refusal, (201, token), refusal) as server:
        api = KubernetesAPI(KubernetesAccess(api_root=server.url))
        target = TokenTarget(str(path), own=str(own))
        keep_token(api, target, Files(), Log("debug"), wait=wait, random=lambda: 0.0, tell=told.append)
        chosen = TokenTarget(str(path), account="another", own=str(own))
        with pytest.raises(DatastoreDenied, match="forbidden to us"):
            ensure_token(api, chosen, Files(), Deadline.after(10))
    assert seen == [(300.0, "pods-token"), (300.0, "pods-second"), (43200.0, "accounts-token")] and told == [""] * 3
    said = capfd.readouterr().err
    assert said.count("forbidden to us. The plugin uses the token of this pod instead") == 1
    assert "pods-" not in said and "accounts-token" not in said


def test_refreshing_goes_on_through_failures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    token = {"status": {"token": "secret-token", "expirationTimestamp": "2026-11-21T00:00:00Z"}}
    path = tmp_path / "calico-kubeconfig"
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 4

    with scripted((403, {"message": "no"}), (403, {"message": "no"}), (201, token), (201, token)) as server:
        api = KubernetesAPI(KubernetesAccess(api_root=server.url))
        keep_token(api, TokenTarget(str(path)), Files(), Log("debug"), wait=wait, random=lambda: 0.0)
    assert 1 <= pauses[0] < pauses[1] * 2 and pauses[2:] == [43200.0, 43200.0]
    assert path.exists() and "secret-token" not in capfd.readouterr().err


def test_lifetimes() -> None:
    from base64 import urlsafe_b64encode

    claims = urlsafe_b64encode(json.dumps({"iat": 1000, "exp": 4600}).encode()).decode().rstrip("=")
    assert parse_lifetime_s(f"h.{claims}.s", default_s=1) == 3600
    for text in ("", "a.b.c", "a", f"h.{urlsafe_b64encode(b'[]').decode()}.s"):
        assert parse_lifetime_s(text, default_s=7) == 7
    token = Token("t", 1000)
    assert (refresh_pause_s(token, random=0), refresh_pause_s(token, random=1)) == (500, 750)
