"""What leaves the process has no secrets, in whatever form they come."""

from __future__ import annotations

import json

import pytest

from cni_calico.cni.answer import answer_error
from cni_calico.errors import NodeNotSetUp
from cni_calico.redaction import without_secrets

CANARY = "c4n4ry+Value/9=="


@pytest.mark.parametrize(
    "text",
    [
        f"password={CANARY}",
        f'"etcd_password": "{CANARY}"',
        f"Authorization: Bearer {CANARY}",
        f"Authorization: Basic {CANARY}",
        f"proxy said: Basic {CANARY}",
        f"bearer {CANARY}",
        "cannot ask https://user:c4n4ry+Value@host:8443/ready: refused",
        "cannot use 'https://c4n4ry+Value@host'",
        "http://a:p@c4n4ry+Value@host/x",
        f"-----BEGIN EC PRIVATE KEY-----\n{CANARY}\n-----END EC PRIVATE KEY-----",
        f"token: {CANARY}",
        "https://host/ready?token=c4n4ry+Value",
    ],
)
def test_secrets_are_hidden(text: str) -> None:
    assert "c4n4ry" not in without_secrets(text)
    answer = json.loads(answer_error(NodeNotSetUp(f"x {text}", details=f"y {text}"), "1.1.0").stdout)
    assert "c4n4ry" not in answer["msg"] + answer["details"]


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach https://10.96.0.1:443/api: refused",
        "use a token or a certificate",
        "mail admin@example.com",
        "basic networking is bearer of news",
        "annotation a@b://c has no address",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text
