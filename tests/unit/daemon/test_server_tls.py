"""Pages over TLS: who is answered, renewal, and what happens while the files cannot be used."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.daemon.http_server import TEXT, PageServer, ServerFiles
from cni_calico.daemon.http_servers import HttpServers
from cni_calico.daemon.server_tls import ServerTls
from cni_calico.log import Log
from tests.deadlines import until
from tests.e2e.relays import make_certificates

PAGES = {"/ok": lambda: (200, TEXT, b"fine\n")}


@pytest.fixture(scope="module")
def metrics_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    make_certificates(directory)
    return directory


def files_of(directory: Path, clients: str = "required") -> ServerFiles:
    names = [str(directory / name) for name in ("server.crt", "server.key", "ca.crt")]
    return ServerFiles(*names, clients)


def client(directory: Path, *, shows: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    context.check_hostname = False
    if shows:
        context.load_cert_chain(directory / "client.crt", directory / "client.key")
    return context


def ask(port: int, context: ssl.SSLContext | None) -> int:
    """The status; 0: the connection is not accepted."""
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    )
    try:
        connection.request("GET", "/ok")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


@pytest.fixture
def serve_tls() -> Iterator[object]:
    open_servers: list[PageServer] = []

    def start(files: ServerFiles) -> PageServer:
        open_servers.append(PageServer("localhost", 0, PAGES, ServerTls(files)))
        return open_servers[-1]

    yield start
    for server in open_servers:
        server.close()


@pytest.mark.parametrize(("clients", "without"), [("required", 0), ("optional", 200), ("none", 200)])
def test_who_is_answered(metrics_certificates: Path, serve_tls, clients: str, without: int) -> None:
    port = serve_tls(files_of(metrics_certificates, clients)).port
    assert ask(port, client(metrics_certificates, shows=True)) == 200
    assert ask(port, client(metrics_certificates, shows=False)) == without
    assert ask(port, None) == 0  # never without TLS


def test_a_certificate_of_another_authority_is_refused(metrics_certificates: Path, serve_tls, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    stranger = client(metrics_certificates, shows=False)
    stranger.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    for clients in ("required", "optional"):
        assert ask(serve_tls(files_of(metrics_certificates, clients)).port, stranger) == 0


def test_older_versions_of_tls_are_refused(metrics_certificates: Path, serve_tls) -> None:
    context = client(metrics_certificates, shows=True)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    port = serve_tls(files_of(metrics_certificates)).port
    assert ask(port, context) == 200
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    assert ask(port, context) == 0


def test_whoever_says_nothing_keeps_nobody_out(metrics_certificates: Path, serve_tls) -> None:
    port = serve_tls(files_of(metrics_certificates)).port
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a handshake
    silent[1].sendall(b"GET /ok HTTP/1.1\r\n\r\n")
    assert ask(port, client(metrics_certificates, shows=True)) == 200
    for connection in silent:
        connection.close()


def test_renewed_files_are_used_and_wrong_ones_are_not(metrics_certificates: Path, serve_tls, tmp_path: Path) -> None:
    used, renewed = tmp_path / "used", tmp_path / "renewed"
    shutil.copytree(metrics_certificates, used)
    renewed.mkdir()
    make_certificates(renewed)
    tls = ServerTls(files_of(used))
    server = PageServer("localhost", 0, PAGES, tls)
    try:
        (used / "server.key").write_text("half a ")
        assert ask(server.port, client(metrics_certificates, shows=True)) == 200
        assert "server.key" in tls.trouble and "the former ones are used" in tls.trouble
        shutil.copytree(renewed, used, dirs_exist_ok=True)
        assert ask(server.port, client(renewed, shows=True)) == 200 and tls.trouble == ""
        assert ask(server.port, client(metrics_certificates, shows=True)) == 0
    finally:
        server.close()


def test_files_that_cannot_be_used_open_nothing(metrics_certificates: Path, tmp_path: Path, capfd) -> None:
    servers = HttpServers(Log("info"))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shutil.copy(metrics_certificates / "server.crt", tmp_path)
    (tmp_path / "ca.crt").write_text("")
    try:
        servers.keep("metrics", ("127.0.0.1", port), lambda: PAGES, files_of(tmp_path))
        assert ask(port, None) == 0
        assert "cannot serve metrics on 127.0.0.1" in (said := capfd.readouterr().err) and "server.key" in said
        servers.keep("metrics", ("127.0.0.1", port), lambda: PAGES, files_of(metrics_certificates))
        until(lambda: ask(port, client(metrics_certificates, shows=True)) == 200, "it is tried again")
        assert "over TLS" in capfd.readouterr().err
        servers.keep("metrics", ("127.0.0.1", port), lambda: PAGES)
        assert ask(port, None) == 200
    finally:
        servers.close()
