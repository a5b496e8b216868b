"""What leaves the process has no secrets, in whatever form they come."""

from __future__ import annotations

import json

import pytest

from cni_calico.cni.answer import answer_error
from cni_calico.errors import NodeNotSetUp
from cni_calico.redaction import shown_url, without_secrets

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
        "https://host/ready?apikey=c4n4ry",
        "https://host/ready?a=b&c=x,c4n4ry'&d=\"c4n4ry",
        "https://host/ready#c4n4ry",
        "cannot use https://user:pa/c4n4ry@host:1: refused",
        "cannot use https://user:pa,c4n4ry@host:1: refused",
        "cannot use https://user:pa'c4n4ry\"x@host:1: refused",
        "cannot use https://user:pa?c4n4ry@host:1: refused",
        "cannot use https://host:1?pa@c4n4ry: refused",
        "cannot use 'https://user:pa c4n4ry@host:1': refused",
        "Cookie: session=x; other=c4n4ry",
        "Set-Cookie: x=c4n4ry; HttpOnly",
        "X-Api-Key: c4n4ry",
        "x-api-key=c4n4ry",
        'Proxy-Authorization: Digest username="u", realm="r", response="c4n4ry"',
        "{'Authorization': 'Digest c4n4ry, c4n4ry'}",
        '"etcd_password": "x c4n4ry"',
        '"etcd_password": "x, c4n4ry", "other": 1',
        '"etcd_password": "x\\" c4n4ry"',
        '"etcd_password": "it was cut off, c4n4ry',
        '\\"etcd_password\\": \\"x c4n4ry\\", other',
        "'password': 'c4n4ry'",
        "{'password': \"it's c4n4ry\"}",
        "password=x,c4n4ry'c4n4ry\"c4n4ry/c4n4ry",
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
        "see https://docs.example.org/x, and http://[fd00::1]:80/y.",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:1/ready", "http://127.0.0.1:1/ready"),
        ("http://127.0.0.1:1/ready?apikey=c4n4ry", "http://127.0.0.1:1/ready?[hidden]"),
        ("https://user:pa/c4n4ry@host:1/x", "https://[hidden]@host:1/x"),
        ("https://user:pa c4n4ry@host", "https://[hidden]@host"),
        ("https://user:pa?c4n4ry@host", "https://[hidden]"),
        ("user:c4n4ry@host:6443", "[hidden]@host:6443"),
        ("", ""),
    ],
)
def test_what_is_shown_of_an_address(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_the_rest_of_a_text_stays() -> None:
    text = without_secrets('{"password": "x, c4n4ry", "other": 1}\nCookie: c4n4ry\nnext https://u:c4n4ry@h/x: refused')
    assert text == '{"password": [hidden], "other": 1}\nCookie: [hidden]\nnext https://[hidden]@h/x: refused'
