"""calico-typha as a process: settings, TLS, health and metrics around one Relay.

Rule: the relay is ready if every collection has been read, and is followed or was until a moment ago; it is alive while
the server's loop runs. At SIGTERM clients are sent to other relays, one after the other, within
TYPHA_SHUTDOWNTIMEOUTSECS. Certificates are read again when their files change.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Mapping

from cni_calico.backoff import Backoff
from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.daemon.exposition import Exposition
from cni_calico.daemon.http_server import TEXT, Page
from cni_calico.daemon.http_servers import HttpServers
from cni_calico.daemon.process_metrics import add_process_metrics
from cni_calico.daemon.said import Said
from cni_calico.daemon.stopping import Stopping
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.group import GroupChoice
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable, DeadlineExceeded, InvalidConfig
from cni_calico.log import Log, wants_json
from cni_calico.relay.balance import Balance
from cni_calico.relay.connections import Limits, Listening
from cni_calico.relay.metrics import render_relay_metrics
from cni_calico.relay.numbers import RelayNumbers
from cni_calico.relay.parts import Relay, server_context
from cni_calico.relay.settings import accepted_of, parse_relay_settings
from cni_calico.server.descriptors import raise_limit

NODES = "/api/v1/nodes"
PORT = 5473
LOOK_S = 5.0
GROUP_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 1.0, 10.0
STUCK_S = 60.0
BACKLOG = 1024
SPARE_DESCRIPTORS = 500  # for everything that is no client's connection


class RelayProcess:
    """Raises InvalidConfig, DatastoreError. ``stopping`` ends it, also before it serves."""

    def __init__(self, environ: Mapping[str, str], stopping: Stopping | None = None) -> None:
        self.settings, without = parse_relay_settings(environ)
        self.stopping = stopping or Stopping()
        self.log = Log(self.settings.log_level, as_json=wants_json(environ))
        for text in without:
            self.log.warning(text)
        config = parse_datastore(JsonFields({}), {**environ, "CALICO_DATASTORE_TYPE": "kubernetes"})
        self.api = KubernetesAPI(config.kubernetes)
        group = self._find_group()
        raise_limit(self.settings.upper_limit + SPARE_DESCRIPTORS)
        self._certificates = self._stamp()
        settings = self.settings
        self.relay = Relay(
            self.api,
            Listening(
                open_listener(settings.server_host, settings.server_port or PORT),
                self._context(),
                (settings.client_cn, settings.client_uri),
                Limits(
                    connections=settings.upper_limit,
                    behind_s=settings.behind_s,
                    handshake_s=settings.handshake_s,
                ),
            ),
            self.log,
            accepted=accepted_of(settings),
            group=group,
        )
        self.balance = Balance(self.relay.server, settings, lambda: self.relay.cache.sizes().get(NODES, 0))
        self._http_servers = HttpServers(self.log)
        self._said = Said(self.log)
        self._turned_at = time.monotonic()

    def _find_group(self) -> str:
        """Waits for the API server: until it answers there is nothing to serve. Raises DatastoreDenied; what was in the
        way if it is stopped meanwhile.
        """
        choice, backoff = GroupChoice(self.api), Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                return choice.choose(Deadline.after(GROUP_S)).name
            except (DatastoreUnavailable, DeadlineExceeded) as e:
                pause_s = backoff.next()
                self.log.warning(f"{e}; trying again in {pause_s:.0f} s")
                if self.stopping.wait(pause_s):
                    raise

    def run(self) -> int:
        """Serve until it is stopped; returns the exit status."""
        settings = self.settings
        health = (settings.health_host, settings.health_port) if settings.health else None
        metrics = (settings.metrics_host, settings.metrics_port) if settings.metrics else None
        keeper = threading.Thread(target=self._keep, args=(health, metrics), name="keeper", daemon=True)
        keeper.start()
        self.log.info(f"serving on {settings.server_host or '*'}:{settings.server_port or PORT}")
        try:
            self.relay.run(self.stopping, turn=self._turn, before_end=self.balance.send_away)
        finally:
            self.stopping.set()
            keeper.join(LOOK_S)
            self._http_servers.close()
            self.api.close()
        return 0

    def _turn(self) -> None:
        self._turned_at = time.monotonic()
        if self.settings.balancing == "kubernetes":
            self.balance.look()

    def _keep(self, health: tuple[str, int] | None, metrics: tuple[str, int] | None) -> None:
        """The work of a separate thread, which must not wait for the server's loop."""
        counted_at = 0.0
        while not self.stopping.is_set():
            self._http_servers.keep("health", health, self._health_pages)
            self._http_servers.keep("metrics", metrics, lambda: {"/metrics": self._metrics_page})
            self._read_certificates_again()
            if self.settings.balancing == "kubernetes" and time.monotonic() - counted_at >= self.settings.poll_s:
                counted_at = time.monotonic()
                why = self.balance.count(self.api)
                self._said.say("balance", [why] if why else [])
            self.stopping.wait(LOOK_S)

    # -- TLS ----------------------------------------------------------------------------------------------------------

    def _context(self) -> ssl.SSLContext:
        settings = self.settings
        try:
            wants = bool(settings.client_cn or settings.client_uri)
            return server_context(settings.certificate, settings.key, settings.ca, wants_certificates=wants)
        except (OSError, ssl.SSLError) as e:
            files = ", ".join(filter(None, (settings.certificate, settings.key, settings.ca)))
            raise InvalidConfig(
                f"cannot use the certificates in {files}: {e}",
                details="they are named by TYPHA_SERVERCERTFILE, TYPHA_SERVERKEYFILE and TYPHA_CAFILE",
            ) from e

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        """When the files were changed."""
        found = []
        for path in filter(None, (self.settings.certificate, self.settings.key, self.settings.ca)):
            try:
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    def _read_certificates_again(self) -> None:
        stamp = self._stamp()
        if stamp == self._certificates:
            return
        try:
            self.relay.server.connections.tls = self._context()
        except InvalidConfig as e:
            self._said.say("certificates", [f"{e}; the previous ones stay in use"])
            return
        self._certificates = stamp
        self._said.say("certificates", [])
        self.log.info("the certificates have been read again")

    # -- what is told -------------------------------------------------------------------------------------------------

    def _health_pages(self) -> dict[str, Page]:
        def liveness() -> tuple[int, str, bytes]:
            stuck_s = time.monotonic() - self._turned_at
            why = f"the server's loop has been stuck for {stuck_s:.0f} s" if stuck_s > STUCK_S else ""
            return _answer(why)

        def readiness() -> tuple[int, str, bytes]:
            unsynced = self.relay.cache.unsynced()
            if self.stopping.is_set():
                return _answer("it is ending")
            return _answer(f"not read yet: {', '.join(unsynced)}" if unsynced else self.relay.cut_off.why())

        return {"/liveness": liveness, "/readiness": readiness}

    def _metrics_page(self) -> tuple[int, str, bytes]:
        relay = self.relay
        numbers = RelayNumbers(
            relay.server.numbers,
            relay.cache.numbers,
            connections=len(relay.server.connections.all),
            streaming=relay.server.streaming,
            share=self.balance.share,
            sizes=relay.cache.sizes(),
            raw_bytes=dict(relay.snapshots.raw_bytes),
            compressed_bytes=dict(relay.snapshots.compressed_bytes),
            older=dict(relay.older),
            troubles=len(relay.cut_off.troubles),
        )
        text = render_relay_metrics(numbers)
        process = Exposition()
        add_process_metrics(process)
        return 200, "text/plain; version=0.0.4; charset=utf-8", (text + process.render()).encode()


def _answer(why: str) -> tuple[int, str, bytes]:
    return (503, TEXT, f"{why}\n".encode()) if why else (200, TEXT, b"ok\n")


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket, for both families where the host has both. Raises InvalidConfig."""
    try:
        if host:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        return socket.create_server(("", port), backlog=BACKLOG)
    except OSError as e:
        raise InvalidConfig(
            f"cannot serve on {host or '*'}:{port}: {e.strerror or e}",
            details="see TYPHA_SERVERHOST and TYPHA_SERVERPORT",
        ) from e


def run_relay(environ: Mapping[str, str]) -> int:
    """Raises InvalidConfig, DatastoreError."""
    stopping = Stopping()
    stopping.on_signals(signal.SIGTERM, signal.SIGINT)
    return RelayProcess(environ, stopping).run()
