"""Asks etcd for ranges of keys without gRPC's library.

Rule: this is a short cut for a process that asks little. It asks the first member that takes a connection, and either
gives its answer or raises NoAnswer. What is wrong (members that are down, a refused login) is found and told by gRPC.
"""

from __future__ import annotations

import threading

from cni_calico.datastore.etcd.credentials import read_credentials
from cni_calico.datastore.etcd.http2 import UnaryConnection
from cni_calico.datastore.etcd.wire import parse_page, parse_token, render_login, render_range
from cni_calico.datastore.http import NotSent, Server
from cni_calico.errors import DatastoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cni_calico.datastore.etcd.config import EtcdConfig, EtcdEndpoint
    from cni_calico.datastore.etcd.credentials import Credentials, Reach
    from cni_calico.datastore.etcd.spans import Span, SpanAnswer
    from cni_calico.deadline import Deadline

CONNECT_S = 0.25  # before the next member is tried
ANSWER_S = 1.0  # for one answer, with what has to come before it
RANGE = "/etcdserverpb.KV/Range"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"


class NoAnswer(Exception):
    """What was asked for is not to be had this way."""


class LightClient:
    """Safe with threads, which take turns."""

    def __init__(self, config: EtcdConfig, endpoints: Sequence[EtcdEndpoint], reach: Reach) -> None:
        self._config = config
        self._endpoints = endpoints
        self._reach = reach
        self._turn = threading.Lock()
        self._connection: UnaryConnection | None = None
        # a member that has lost the others then says so at once
        self._metadata = {"hasleader": "true"}

    def ask(self, span: Span, deadline: Deadline) -> SpanAnswer:
        """Raises NoAnswer."""
        deadline = deadline.sooner(ANSWER_S)
        if not self._turn.acquire(timeout=deadline.remaining_s()):
            raise NoAnswer("others are asking")
        try:
            connection = self._connection or self._connect(deadline)
            return parse_page(connection.call(RANGE, render_range(span), self._metadata, deadline))
        except (DatastoreError, OSError, ValueError) as e:
            raise NoAnswer(str(e)) from e
        finally:
            self._turn.release()

    def _connect(self, deadline: Deadline) -> UnaryConnection:
        """Connect to the first member that can be connected to, and log in."""
        credentials = read_credentials(self._config, self._reach)
        for endpoint in self._endpoints:
            try:
                connection = UnaryConnection(_server(endpoint, credentials), deadline.sooner(CONNECT_S))
            except NotSent:
                continue
            self._connection = connection
            if self._config.username:
                login = render_login(self._config.username, self._config.password)
                token = parse_token(connection.call(AUTHENTICATE, login, self._metadata, deadline))
                self._metadata = {**self._metadata, "token": token}
            return connection
        raise NotSent("no member takes connections")

    def close(self) -> None:
        """Whoever is asking gets no answer."""
        if self._connection is not None:
            self._connection.close()


def _server(endpoint: EtcdEndpoint, credentials: Credentials) -> Server:
    if not endpoint.tls:
        return Server(endpoint.host, endpoint.port)
    from cni_calico.datastore.tls import client_context

    context = client_context(credentials.ca, credentials.cert or b"", credentials.key or b"")
    context.set_alpn_protocols(["h2"])
    return Server(endpoint.host, endpoint.port, tls=context)
