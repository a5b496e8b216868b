"""Flags of the webhook, and certificates in files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cni_calico.controllers.admission.certificates import DAY_S, make_certificate
from cni_calico.controllers.admission.run import WebhookFlags, WebhookProcess, parse_webhook_flags
from cni_calico.controllers.main import run
from cni_calico.daemon.stopping import Stopping
from cni_calico.errors import InvalidConfig
from tests.deadlines import until
from tests.unit.controllers.admission.test_serving import ask


def test_upstreams_flags() -> None:
    given = {
        "tls-cert-file": "c",
        "tls-private-key-file": "k",
        "client-ca-file": "a",
        "port": "1",
        "log-level": "Trace",
    }
    assert parse_webhook_flags(given) == WebhookFlags("c", "k", "a", 1, "debug")
    assert parse_webhook_flags({}) == WebhookFlags("", "", "", 6443, "info")


@pytest.mark.parametrize(
    "flags",
    [{"tls-cert-file": "c"}, {"tls-private-key-file": "k"}, {"port": "70000"}, {"port": "-1"}, {"log-level": "loud"}],
)
def test_wrong_flags(flags: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        parse_webhook_flags(flags)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("calico-kube-controllers", ["webhook"]),
        ("calico", ["component", "webhooks", "webhook"]),
        ("webhooks", ["webhook"]),
    ],
)
def test_its_names(program: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(program, [*words, "--port=x"], {}) == 1
    assert "--port is 'x'" in capsys.readouterr().err
    assert run(program, [*words, "--what"], {}) == 2
    assert "usage: calico-kube-controllers webhook" in capsys.readouterr().err


def test_files_are_served_and_read_again(tmp_path: Path) -> None:
    pairs = [make_certificate(["localhost"], DAY_S) for _ in range(2)]
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    stopping, environ = Stopping(), {"KUBECONFIG": str(tmp_path / "none")}
    process = WebhookProcess(WebhookFlags(str(certificate), str(key), port=0, level="none"), environ, stopping)
    thread = threading.Thread(target=process.run)
    thread.start()
    try:  # the files come later than the pod
        certificate.write_bytes(pairs[0].certificate)
        key.write_bytes(pairs[0].key)
        until(lambda: process.server.port != 0, "it serves", 60)
        assert ask(process.server, "/readyz", trusted=pairs[0].certificate) == (200, b"ok\n")
        certificate.write_bytes(pairs[1].certificate)
        process.look()  # one of the other key: the former one stays
        assert ask(process.server, "/readyz", trusted=pairs[0].certificate) == (200, b"ok\n")
        key.write_bytes(pairs[1].key)
        process.look()
        assert ask(process.server, "/readyz", trusted=pairs[1].certificate) == (200, b"ok\n")
    finally:
        stopping.set()
        thread.join()
