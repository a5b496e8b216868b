"""Kubeconfig files as the official client reads them: the same server, authorities and credentials."""

from __future__ import annotations

import json
import time
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.config import load_kube_config

from cni_calico.datastore.kubernetes.login import Login, read_login
from cni_calico.model.access import KubernetesAccess
from tests.deadlines import SOON


def token_of(**claims: Any) -> str:
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims, {}))
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


LATER = token_of(exp=int(time.time()) + 86400, name="ü?>~")


def inline(text: str) -> str:
    return b64encode(text.encode()).decode()


USERS: dict[str, dict[str, Any]] = {
    "token": {"token": "t0k"},
    "token file": {"tokenFile": "token"},
    "certificate": {"client-certificate-data": inline("cert"), "client-key-data": inline("key")},
    "certificate files": {"client-certificate": "cert.pem", "client-key": "key.pem"},
    "password": {"username": "u", "password": "p:w"},
    "oidc": {"auth-provider": {"name": "oidc", "config": {"id-token": LATER}}},
    "nobody": {},
}
CLUSTERS: dict[str, dict[str, Any]] = {
    "inline": {"certificate-authority-data": inline("ca")},
    "file": {"certificate-authority": "ca.pem"},
    "insecure": {"insecure-skip-tls-verify": True},
    "named": {"certificate-authority": "ca.pem", "tls-server-name": "other"},
}


def by_library(path: Path, context: str) -> Login:
    found = client.Configuration()
    load_kube_config(str(path), context=context, client_configuration=found, persist_config=False)
    key = found.get_api_key_with_prefix("authorization") or found.get_api_key_with_prefix("BearerToken")

    def content(name: str | None) -> bytes:
        return Path(name).read_bytes() if name else b""

    return Login(
        url=found.host,
        ca=content(found.ssl_ca_cert) or None,
        insecure=not found.verify_ssl,
        server_name=found.tls_server_name or "",
        certificate=content(found.cert_file),
        key=content(found.key_file),
        authorization=key or (found.get_basic_auth_token() if found.username else "") or "",
    )


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_official_client_reads_the_same(tmp_path: Path, user: str, cluster: str) -> None:
    for name in ("cert.pem", "key.pem", "ca.pem"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "token").write_text("from-file")
    server = {"server": "https://10.96.0.1:6443", **CLUSTERS[cluster]}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "other",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": USERS[user]}, {"name": "v", "user": {"token": "another"}}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u"}},
            {"name": "other", "context": {"cluster": "c", "user": "v"}},
        ],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    assert read_login(KubernetesAccess(kubeconfig=str(path), context="x"), SOON) == by_library(path, "x")
