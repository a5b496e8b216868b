"""The published ports of containers: who has which port of the host.

Rule: a port is bound, and not listened on, before it is forwarded, so that Docker's own proxies and other programs
collide with it visibly, and we with them. What an endpoint publishes is in its file before it is in force; a restart of
the driver forwards the same again, with the sockets that systemd has kept, or with others.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.docker.descriptors import DescriptorStore
from cni_calico.docker.documents import PortRequest
from cni_calico.docker.state import DockerEndpoint
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.kernel.filter.port_table import PortForward, apply_forwards, read_forwards
from cni_calico.log import Log
from cni_calico.model.resources import Address

_TYPES = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM, "sctp": socket.SOCK_STREAM}
_PROTOCOL_NUMBERS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP, "sctp": 132}
_TRIES = 20  # for a port that is free in both families


@dataclass(frozen=True, slots=True)
class _Published:
    """``sockets``: by their names in the descriptor store."""

    forwards: tuple[PortForward, ...]
    sockets: Mapping[str, socket.socket]


class PortPublisher:
    """Safe with threads."""

    def __init__(self, log: Log, descriptors: DescriptorStore) -> None:
        self._log, self._descriptors = log, descriptors
        self._guard = threading.Lock()
        self._published: dict[str, _Published] = {}
        self._written: Any = None  # what the packet filter has listed after the last change

    def bind(
        self, endpoint: str, asked: Sequence[PortRequest], addresses: Sequence[Address]
    ) -> tuple[PortForward, ...]:
        """Bind what is asked for, in the place of what it has had before. Raises InvalidConfig, with none bound."""
        with ExitStack() as undo:
            found: list[PortForward] = []
            sockets: list[socket.socket] = []
            for each in asked:
                bound = _bind_one(each, addresses, undo)
                found += bound[0]
                sockets += bound[1]
            undo.pop_all()
        named = dict(zip(map(descriptor_name, found), sockets, strict=True))
        for name, kept in named.items():
            self._descriptors.keep(name, kept)
        with self._guard:
            former = self._published.get(endpoint)
            self._published[endpoint] = _Published(tuple(found), named)
        self._close(former)
        return tuple(found)

    def apply(self, deadline: Deadline) -> None:
        """Forward what is bound, and nothing else. Raises KernelError."""
        with self._guard:
            self._apply(deadline)

    def _apply(self, deadline: Deadline) -> None:
        self._written = None
        apply_forwards([each for one in self._published.values() for each in one.forwards], deadline)
        self._written = read_forwards(deadline)

    def repair(self, deadline: Deadline) -> bool:
        """Forward again what another program has changed; whether it had. Raises KernelError."""
        with self._guard:
            if not self._published or self._written == read_forwards(deadline):
                return False
            self._apply(deadline)
        return True

    def withdraw(self, endpoint: str, deadline: Deadline) -> None:
        """Absent is success. Raises KernelError; then the ports are still bound."""
        with self._guard:
            former = self._published.pop(endpoint, None)
            if former is None or not former.forwards:
                return
            try:
                self._apply(deadline)
            except CalicoError:
                self._published[endpoint] = former
                raise
        self._close(former)

    def restore(self, endpoints: Iterable[DockerEndpoint], deadline: Deadline) -> None:
        """After a restart of the driver. Raises KernelError."""
        for endpoint in endpoints:
            try:
                forwards = tuple(map(parse_forward, endpoint.ports))
            except ValueError as e:
                self._log.error(f"the ports of endpoint {endpoint.id[:12]} are not published: {e}")
                continue
            sockets = {descriptor_name(each): made for each in forwards if (made := self._bind_again(each)) is not None}
            with self._guard:
                self._published[endpoint.id] = _Published(forwards, sockets)
        self._descriptors.drop_rest()
        self.apply(deadline)

    def _bind_again(self, forward: PortForward) -> socket.socket | None:
        """What systemd has kept, else a new socket."""
        name = descriptor_name(forward)
        if (kept := self._descriptors.take(name)) is not None:
            return kept
        try:
            made = _bind(forward.protocol, forward.host, forward.address.version, forward.host_port)
        except OSError as e:  # another program has taken it meanwhile; the container had it before
            self._log.error(f"cannot bind {forward.host_port}/{forward.protocol} again: {e.strerror or e}")
            return None
        self._descriptors.keep(name, made)
        return made

    def _close(self, published: _Published | None) -> None:
        if published is None:
            return
        self._descriptors.drop(published.sockets)
        for each in published.sockets.values():
            each.close()


def descriptor_name(forward: PortForward) -> str:
    """PURE: of a port's socket in systemd's store; without a colon, and no other socket's."""
    host = forward.host.packed.hex() if forward.host is not None else "any"
    return f"{forward.protocol}{forward.address.version}-{forward.host_port}-{host}"


def render_forward(forward: PortForward) -> str:
    """PURE: as an endpoint's file has it."""
    return f"{forward.protocol} {forward.host or '*'} {forward.host_port} {forward.address} {forward.port}"


def parse_forward(text: str) -> PortForward:
    """PURE. Raises ValueError."""
    protocol, host, host_port, address, port = text.split(" ")
    if protocol not in _TYPES:
        raise ValueError(f"{protocol} is no protocol with ports")
    own = None if host == "*" else ip_address(host)
    return PortForward(protocol, int(host_port), ip_address(address), int(port), own)


def _bind_one(
    asked: PortRequest, addresses: Sequence[Address], undo: ExitStack
) -> tuple[list[PortForward], list[socket.socket]]:
    targets = [address for address in addresses if asked.host is None or asked.host.version == address.version]
    if not targets:
        raise InvalidConfig(
            f"cannot publish {asked}: the container has no address of that family",
            details="publish it at another address of the host, or make the network with --ipv6",
        )
    last: OSError | None = None
    for host_port in asked.candidates() or [0] * _TRIES:
        sockets: list[socket.socket] = []
        chosen = host_port
        try:
            for target in targets:
                made = _bind(asked.protocol, asked.host, target.version, chosen)
                sockets.append(made)
                chosen = made.getsockname()[1]
        except OSError as e:
            last = e
            for each in sockets:
                each.close()
            if e.errno == errno.EADDRINUSE:
                continue
            break
        for each in sockets:
            undo.callback(each.close)
        return [PortForward(asked.protocol, chosen, target, asked.port, asked.host) for target in targets], sockets
    raise InvalidConfig(f"cannot publish {asked}: {_why(last, asked)}")


def _why(error: OSError | None, asked: PortRequest) -> str:
    if error is not None and error.errno == errno.EADDRINUSE:
        return f"the port is in use on {asked.host or '0.0.0.0'}"
    if error is not None and error.errno == errno.EPROTONOSUPPORT:
        return f"this kernel has no {asked.protocol.upper()}"
    return (error.strerror if error is not None else "") or "it cannot be bound"


def _bind(protocol: str, host: Address | None, version: int, port: int) -> socket.socket:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    made = socket.socket(family, _TYPES[protocol] | socket.SOCK_CLOEXEC, _PROTOCOL_NUMBERS[protocol])
    try:
        if version == 6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((str(host) if host is not None else "", port))
    except OSError:
        made.close()
        raise
    return made
