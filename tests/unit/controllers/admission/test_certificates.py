"""Certificates of the webhook, read by openssl and shown to a client of Python's ssl."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from cni_calico.controllers.admission.certificates import (
    DAY_S,
    KeyPair,
    make_certificate,
    names_server,
    read_left_s,
    serving_context,
)
from cni_calico.errors import InvalidConfig

NAME = "calico-webhooks.kube-system.svc"
NAMES = [NAME, f"{NAME}.cluster.local"]


def openssl(*words: str, stdin: bytes = b"") -> str:
    done = subprocess.run(["openssl", *words], input=stdin, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_openssl_reads_what_was_made(tmp_path: Path) -> None:
    pair = make_certificate(NAMES, 100 * DAY_S)
    text = openssl("x509", "-noout", "-text", stdin=pair.certificate)
    for said in (
        "Version: 3",
        "CA:FALSE",
        "Digital Signature",
        "TLS Web Server Authentication",
        "ASN1 OID: prime256v1",
    ):
        assert said in text
    assert ", ".join(f"DNS:{name}" for name in NAMES) in text
    (tmp_path / "c").write_bytes(pair.certificate)
    assert "OK" in openssl(
        "verify", "-x509_strict", "-partial_chain", "-CAfile", str(tmp_path / "c"), str(tmp_path / "c")
    )
    public = openssl("pkey", "-pubout", stdin=pair.key)
    assert openssl("x509", "-noout", "-pubkey", stdin=pair.certificate) == public
    assert make_certificate(NAMES, DAY_S).key != pair.key


def shake_hands(pair: KeyPair, trusted: bytes, name: str) -> None:
    """A client that trusts ``trusted`` talks to a server that shows the pair."""
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context(cadata=trusted.decode())

    def serve() -> None:
        with ours, serving_context(pair).wrap_socket(ours, server_side=True) as connection:
            connection.sendall(b"hello")

    server = threading.Thread(target=serve)
    server.start()
    try:
        with theirs, context.wrap_socket(theirs, server_hostname=name) as connection:
            assert connection.recv(5) == b"hello"
    finally:
        theirs.close()
        server.join()


def test_a_client_that_trusts_it_beside_another_one_talks_to_its_server() -> None:
    pair, other = make_certificate(NAMES, DAY_S), make_certificate(NAMES, DAY_S)
    shake_hands(pair, other.certificate + pair.certificate, NAME)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("why", ["another name", "another certificate"])
def test_a_client_trusts_nothing_else(why: str) -> None:
    pair, other = make_certificate(NAMES, DAY_S), make_certificate(NAMES, DAY_S)
    with pytest.raises(ssl.SSLCertVerificationError):
        if why == "another name":
            shake_hands(pair, pair.certificate, "elsewhere.svc")
        else:
            shake_hands(pair, other.certificate, NAME)


def test_how_long_and_for_whom() -> None:
    pair = make_certificate(NAMES, 100 * DAY_S)
    assert 100 * DAY_S - 120 <= read_left_s(pair.certificate) <= 100 * DAY_S
    assert -DAY_S - 120 <= read_left_s(make_certificate(NAMES, -DAY_S).certificate) <= -DAY_S
    assert names_server(pair.certificate, NAME) and not names_server(pair.certificate, "calico-webhooks.other.svc")


@pytest.mark.parametrize("text", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate(text: bytes) -> None:
    for read in (read_left_s, lambda each: names_server(each, NAME)):
        with pytest.raises(InvalidConfig):
            read(text)
    with pytest.raises(OSError):
        serving_context(KeyPair(text, make_certificate(NAMES, DAY_S).key))


def test_a_key_of_another_certificate() -> None:
    with pytest.raises(OSError):
        serving_context(KeyPair(make_certificate(NAMES, DAY_S).certificate, make_certificate(NAMES, DAY_S).key))
