"""Relays in this process, on a real API server: certificates, start, kill, start again."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from cni_calico.daemon.stopping import Stopping
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.log import Log
from cni_calico.model.access import API_GROUP, RelayAccess
from cni_calico.relay.connections import Limits, Listening
from cni_calico.relay.parts import Relay, server_context
from cni_calico.relay.tokens import Accepted

_OPENSSL = (
    "ecparam -name prime256v1 -genkey -noout -out {name}.key",
    "req -new -key {name}.key -subj /CN={common_name} -out {name}.csr",
    "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile {name}.ext -out {name}.crt",
)


def make_certificates(directory: Path) -> None:
    """An authority, the relay's certificate (typha-server) and a client's (typha-client)."""
    _openssl(
        directory,
        "ecparam -name prime256v1 -genkey -noout -out ca.key",
        "req -x509 -new -key ca.key -subj /CN=relay-ca -days 30 -out ca.crt -addext basicConstraints=critical,CA:TRUE",
    )
    names = "subjectAltName=IP:127.0.0.1,DNS:calico-typha.kube-system.svc,URI:spiffe://relay"
    for name, extension in (("server", names), ("client", "extendedKeyUsage=clientAuth"), ("other", names)):
        (directory / f"{name}.ext").write_text(extension + "\n")
        common_name = f"typha-{name}"
        _openssl(directory, *(line.format(name=name, common_name=common_name) for line in _OPENSSL))


def _openssl(directory: Path, *commands: str) -> None:
    for command in commands:
        done = subprocess.run(["openssl", *command.split()], cwd=directory, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {command}: {done.stderr}")


class RunningRelay:
    """A relay in a thread; ``kill`` ends it without telling anybody."""

    def __init__(
        self,
        api: KubernetesAPI,
        certificates: Path,
        port: int = 0,
        *,
        accepted: Accepted | None = None,
        limits: Limits | None = None,
        group: str = API_GROUP,
    ) -> None:
        listener = socket.create_server(("127.0.0.1", port), backlog=1000)
        self.port = int(listener.getsockname()[1])
        tls = server_context(
            str(certificates / "server.crt"),
            str(certificates / "server.key"),
            str(certificates / "ca.crt"),
            wants_certificates=True,
        )
        listening = Listening(listener, tls, ("typha-client", ""), limits or Limits())
        self.relay = Relay(api, listening, Log("error"), accepted=accepted, group=group)
        self._stopping = Stopping()
        self._turns: SimpleQueue[tuple[str, threading.Event]] = SimpleQueue()
        options = {"turn": self._turn}
        self._thread = threading.Thread(target=self.relay.run, args=(self._stopping,), kwargs=options, daemon=True)
        self._thread.start()

    def drop_one(self, why: str) -> None:
        """End the watch that began last; the relay's own thread does it, as only that one may write to sockets."""
        done = threading.Event()
        self._turns.put((why, done))
        assert done.wait(30)

    def _turn(self) -> None:
        while not self._turns.empty():
            why, done = self._turns.get()
            self.relay.server.drop_one(why)
            done.set()

    def kill(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def running_relay(make: Callable[[], RunningRelay]) -> Iterator[RunningRelay]:
    relay = make()
    try:
        yield relay
    finally:
        relay.kill()


def relay_access(certificates: Path, port: int) -> RelayAccess:
    """With the client's certificate."""
    return RelayAccess(
        address=f"127.0.0.1:{port}",
        ca_file=str(certificates / "ca.crt"),
        certificate_file=str(certificates / "client.crt"),
        key_file=str(certificates / "client.key"),
        common_name="typha-server",
    )
