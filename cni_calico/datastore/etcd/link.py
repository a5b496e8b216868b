"""One connection to one etcd member, and the calls on it.

Rule: gRPC's errors are translated here, into ``CallFailed``. A link counts as usable only after the member has answered
on it, so a call that fails before that was certainly not sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from cni_calico.datastore.etcd.config import EtcdEndpoint
from cni_calico.datastore.etcd.credentials import Credentials
from cni_calico.datastore.etcd.errors import ELSEWHERE, LOST, meaning_of, short_reason
from cni_calico.datastore.etcd.messages import load_grpc, pb
from cni_calico.shortage import shortage_of

CallMetadata = tuple[tuple[str, str], ...]

# Channels with a call that no thread will ever end: closing one, or having it collected, would wait for that.
_ABANDONED: list[Any] = []
_KEEPALIVE_MS = 10_000  # etcd drops clients that ask more often than every 5 s
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # what a member may send before it is read: a window that grows with the line's speed would grow with a storm
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1024 * 1024),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),  # a write is sent once; the caller decides what to do if it is lost
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new link must not inherit another's back-off
)
# Required on every call: a member that has lost the others then reports that at once instead of letting the call wait.
REQUIRE_LEADER: CallMetadata = (("hasleader", "true"),)
METHODS: dict[str, tuple[str, Any]] = {
    "Range": ("/etcdserverpb.KV/Range", pb.RangeResponse),
    "Txn": ("/etcdserverpb.KV/Txn", pb.TxnResponse),
    "Compact": ("/etcdserverpb.KV/Compact", pb.CompactionResponse),
    "LeaseGrant": ("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse),
    "LeaseRevoke": ("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse),
    # etcd sees a stream; on the wire a unary call looks the same
    "LeaseKeepAlive": ("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse),
    "Authenticate": ("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse),
    "Status": ("/etcdserverpb.Maintenance/Status", pb.StatusResponse),
}
_WATCH = "/etcdserverpb.Watch/Watch"
_KEEP_ALIVE = "LeaseKeepAlive"


class CallFailed(Exception):
    """A call that returned no answer. ``meaning``: see errors.py; ``why`` is for people."""

    def __init__(self, meaning: str, why: str) -> None:
        super().__init__(why)
        self.meaning = meaning
        self.why = why


def _target(endpoint: EtcdEndpoint) -> str:
    if ":" in endpoint.host:
        return f"ipv6:{endpoint.authority}"
    numeric = endpoint.host.replace(".", "").isdigit()
    return f"{'ipv4:' if numeric else 'dns:///'}{endpoint.authority}"


class EtcdLink:
    """A channel to ``endpoint``. Safe with threads; not over a fork."""

    def __init__(self, endpoint: EtcdEndpoint, credentials: Credentials) -> None:
        grpc = load_grpc()
        self.endpoint = endpoint
        self.broken = ""  # why it must not be used any more
        options = [*_OPTIONS, ("grpc.default_authority", endpoint.authority)]
        if endpoint.tls:
            tls = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.cert)
            self._channel = grpc.secure_channel(_target(endpoint), tls, options)
        else:
            self._channel = grpc.insecure_channel(_target(endpoint), options)
        self._error = grpc.RpcError
        self._calls: dict[str, Any] = {}
        self._streams: set[Any] = set()

    def _method(self, name: str) -> Any:
        method = self._calls.get(name)
        if method is None:
            path, answer = METHODS[name]
            method = self._channel.unary_unary(
                path, request_serializer=_serialize, response_deserializer=answer.FromString
            )
            self._calls[name] = method
        return method

    def call(self, name: str, request: Any, timeout_s: float, metadata: CallMetadata = ()) -> Any:
        """Raises CallFailed."""
        try:
            if name == _KEEP_ALIVE:
                return self._keep_alive(request, timeout_s, metadata)
            return self._method(name)(request, timeout=timeout_s, metadata=metadata)
        except self._error as e:
            raise _failed(e) from e
        except ValueError as e:  # the channel was closed
            raise CallFailed(ELSEWHERE, str(e)) from e

    def _keep_alive(self, request: Any, timeout_s: float, metadata: CallMetadata) -> Any:
        """The first answer of a stream, which stays open until then: etcd's gRPC proxy answers only such streams."""
        path, answer = METHODS[_KEEP_ALIVE]
        method = self._channel.stream_stream(
            path, request_serializer=_serialize, response_deserializer=answer.FromString
        )
        answered = threading.Event()

        def requests() -> Iterator[Any]:
            yield request
            answered.wait(timeout_s)

        stream = self._started(lambda: method(requests(), timeout=timeout_s, metadata=metadata))
        try:
            for found in stream:
                return found
            raise CallFailed(LOST, "the stream ended without an answer")
        finally:
            answered.set()
            stream.cancel()

    def _started(self, start: Callable[[], Any]) -> Any:
        """A call for which gRPC starts a thread. Raises CallFailed if there is none."""
        try:
            return start()
        except RuntimeError as e:
            if not (lacking := shortage_of(e)):
                raise
            _ABANDONED.append(self._channel)
            raise CallFailed(LOST, f"this host is short of {lacking}") from e

    def probe(self, timeout_s: float, done: Callable[[EtcdLink, str], None]) -> None:
        """Connect and ask for the member's status. ``done(self, why)`` is called once, from any thread; ``why`` is ""
        if the link is usable.
        """
        # started here: if gRPC cannot start a thread, it is left in a state that cannot be closed
        thread = threading.Thread(target=self._probe, args=(timeout_s, done), name="etcd-probe", daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            if not (lacking := shortage_of(e)):
                raise
            done(self, f"this host is short of {lacking}")

    def _probe(self, timeout_s: float, done: Callable[[EtcdLink, str], None]) -> None:
        try:
            status = self._method("Status")(pb.StatusRequest(), timeout=timeout_s)
        except self._error as e:
            failed = _failed(e)
            # An answer that only says "you may not" or "log in" proves that the member is there.
            done(self, failed.why if failed.meaning in (LOST, ELSEWHERE) else "")
        except ValueError:  # the channel was closed
            done(self, "given up")
        else:
            if status.is_learner:
                done(self, "it is a learner")
            else:
                done(self, "" if status.leader else NO_LEADER)

    def watch(self, requests: Iterator[Any], metadata: CallMetadata) -> Any:
        """The stream of WatchResponses, a gRPC call: iterable, ``cancel()``."""
        method = self._channel.stream_stream(
            _WATCH, request_serializer=_serialize, response_deserializer=pb.WatchResponse.FromString
        )
        stream = self._started(lambda: method(requests, metadata=metadata))
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)
        return stream

    def end_watches(self) -> None:
        """Wake the watchers on this link: it has become silent, and they would take that for a time without changes."""
        for stream in list(self._streams):
            stream.cancel()

    def close(self) -> None:
        if not any(channel is self._channel for channel in _ABANDONED):
            self._channel.close()


def _serialize(message: Any) -> bytes:
    serialized: bytes = message.SerializeToString()
    return serialized


NO_LEADER = "it has no leader"


def _failed(error: Any) -> CallFailed:
    status, text = error.code().name, error.details() or ""
    return CallFailed(meaning_of(status, text), short_reason(status, text))


def stream_failure(error: Exception) -> CallFailed:
    """The failure that ended a watch stream."""
    return _failed(error) if hasattr(error, "code") else CallFailed(LOST, str(error))
