"""etcd servers with TLS, how to reach them, and endpoints at which there is none."""

from __future__ import annotations

import itertools
import socket
from contextlib import ExitStack

from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from tests.contract import etcd_process
from tests.e2e.etcd.certificates import Authority
from tests.fakes.tcp import Forwarder

_serial = itertools.count()  # etcd reads its files at every handshake: each server keeps its own
SERVED_NAMES = "IP:127.0.0.1,IP:::1,DNS:localhost"


def tls_arguments(authority: Authority, names: str = SERVED_NAMES) -> list[str]:
    """Clients must have a certificate; the server's own is for serverAuth only."""
    cert, key = authority.issue(f"server-{next(_serial)}", "etcd-server", "serverAuth", names)
    files = ["--cert-file", str(cert), "--key-file", str(key), "--trusted-ca-file", str(authority.certificate)]
    return [*files, "--client-cert-auth"]


def tls_config(authority: Authority, urls: tuple[str, ...], name: str = "client", **others: str) -> EtcdConfig:
    cert, key = authority.issue(name, name, "clientAuth")
    return EtcdConfig(urls, key_file=str(key), cert_file=str(cert), ca_file=str(authority.certificate), **others)


def with_login(config: EtcdConfig, username: str, password: str) -> EtcdConfig:
    return EtcdConfig(config.endpoints, "", config.key_file, config.cert_file, config.ca_file, username, password)


def opened(undo: ExitStack, config: EtcdConfig) -> EtcdStore:
    """Closed at the end."""
    store = EtcdStore(config)
    undo.callback(store.close)
    return store


def silent_endpoint(undo: ExitStack) -> str:
    """Takes connections and never says a word, as a stopped process does."""
    s = undo.enter_context(socket.socket())
    s.bind(("127.0.0.1", 0))
    s.listen(64)
    return f"http://127.0.0.1:{s.getsockname()[1]}"


def black_hole(undo: ExitStack) -> str:
    """Drops connection requests, as a host that is gone does: its queue is full."""
    s = undo.enter_context(socket.socket())
    s.bind(("127.0.0.1", 0))
    s.listen(0)
    for _ in range(3):
        filler = undo.enter_context(socket.socket())
        filler.setblocking(False)
        filler.connect_ex(s.getsockname())
    return f"http://127.0.0.1:{s.getsockname()[1]}"


def forwarder_to(endpoint: str) -> Forwarder:
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    return Forwarder((host, int(port)))


def refusing() -> str:
    return f"http://127.0.0.1:{etcd_process.free_ports(1)[0]}"
