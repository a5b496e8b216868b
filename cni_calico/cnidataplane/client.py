"""Calls an external data plane: service ``cni.CniDataplane``, plaintext gRPC over a unix socket.

Rule: one channel per call, so a restarted data plane needs no special handling; a call takes at most TIMEOUT_S. Every
failure becomes a DataplaneFailed with the data plane's own message. Source: the service of Calico/VPP's agent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import DataplaneFailed
from cni_calico.slim_grpc import load_grpc, slim_messages

with slim_messages():
    from cni_calico.cnidataplane import dataplane_pb2 as pb


ADD = faults.declare("dataplane.add")
DEL = faults.declare("dataplane.del")
TIMEOUT_S = 5.0
TEXT_MAX = 300
PATH_MAX_BYTES = 107  # sockaddr_un's, without the byte that ends it
_SERVICE = "/cni.CniDataplane/"
_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel must not inherit another one's back-off
)
_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/")


def add_interface(path: str, fields: Mapping[str, Any], deadline: Deadline) -> tuple[str, str]:
    """Returns the host interface's name and the container's MAC as the data plane reports them.

    ``fields`` are those of AddRequest. Raises DataplaneFailed, DeadlineExceeded.
    """
    reply = _call(path, ADD, "Add", pb.AddRequest, fields, pb.AddReply.FromString, deadline)
    return str(reply.host_interface_name), str(reply.container_mac)


def remove_interface(path: str, fields: Mapping[str, Any], deadline: Deadline) -> None:
    """``fields`` are those of DelRequest. Raises DataplaneFailed, DeadlineExceeded."""
    _call(path, DEL, "Del", pb.DelRequest, fields, pb.DelReply.FromString, deadline)


def require_listening(path: str, deadline: Deadline) -> None:
    """Raises DataplaneFailed if nothing speaks gRPC behind the socket, DeadlineExceeded."""
    timeout_s = min(TIMEOUT_S, deadline.require(f"reach the data plane at {path}"))
    with _channel(path) as (grpc, channel):
        states: list[Any] = []
        try:
            channel.subscribe(states.append, try_to_connect=True)
            grpc.channel_ready_future(channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError as e:
            refused = grpc.ChannelConnectivity.TRANSIENT_FAILURE in states
            why = "nothing listens there" if refused else f"no gRPC within {timeout_s:.0f} s"
            raise DataplaneFailed(f"cannot reach the data plane at {path}: {why}") from e


def _call(
    path: str,
    point: str,
    method: str,
    request: Callable[..., Any],
    fields: Mapping[str, Any],
    parse: Callable[[bytes], Any],
    deadline: Deadline,
) -> Any:
    """Returns the reply if it reports success. Raises DataplaneFailed, DeadlineExceeded."""
    doing = f"{method} of the data plane at {path}"
    timeout_s = min(TIMEOUT_S, deadline.require(f"call {doing}"))
    try:
        data: bytes = request(**fields).SerializeToString()
    except (ValueError, TypeError) as e:  # a text that is not UTF-8, a number out of range
        raise DataplaneFailed(f"cannot call {doing}: {short(str(e))}") from e
    with _channel(path) as (grpc, channel):
        try:
            faults.before(point)
            answer = channel.unary_unary(_SERVICE + method)(data, timeout=timeout_s)
            faults.after(point)
        except (grpc.RpcError, OSError) as e:
            raise DataplaneFailed(f"cannot call {doing}: {_reason(e, timeout_s)}") from e
    try:
        reply = parse(answer)
    except Exception as e:  # DecodeError, which would have to be imported just for its name
        raise DataplaneFailed(f"cannot call {doing}: its answer cannot be read: {short(str(e))}") from e
    if not reply.successful:
        raise DataplaneFailed(f"cannot call {doing}: it says: {short(reply.error_message) or 'not successful'}")
    return reply


@contextmanager
def _channel(path: str) -> Iterator[tuple[Any, Any]]:
    """The package grpc, and a channel to a socket. Raises DataplaneFailed."""
    grpc = load_grpc()
    with _shortened(path) as near, grpc.insecure_channel(target_of(near), _OPTIONS) as channel:
        yield grpc, channel


@contextmanager
def _shortened(path: str) -> Iterator[str]:
    """A path of the same socket that fits into an address; a caller's below another root may be too long for one."""
    if len(os.fsencode(path)) <= PATH_MAX_BYTES:
        yield path
        return
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as e:
        raise DataplaneFailed(f"cannot reach the data plane at {path}: {e.strerror}") from e
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def target_of(path: str) -> str:
    """The gRPC target for a socket's path: a URI, so some characters are escaped."""
    return "unix:" + "".join(
        chr(c) if c in _UNRESERVED else f"%{c:02X}" for c in path.encode("utf-8", "surrogateescape")
    )


def _reason(error: Any, timeout_s: float) -> str:
    """Why a call got no answer, as text for people."""
    if isinstance(error, faults.Injected):
        return str(error)
    status, text = error.code().name, short(error.details() or "")
    if status == "DEADLINE_EXCEEDED":
        return f"no answer within {timeout_s:.0f} s"
    if status == "UNIMPLEMENTED":
        return "the server there does not serve cni.CniDataplane"
    return text or status


def short(text: str) -> str:
    """The text of another program on one line, cut to TEXT_MAX characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 3] + "..."
