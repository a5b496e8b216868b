"""A host's wires, looked at while a token is sent.

Rule: every interface is a wire but lo, pods' ones and WireGuard's own; it takes CAP_NET_RAW and changes nothing.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

from cni_calico.ctl.cluster.connectivity.findings import OPEN_PORT
from cni_calico.ctl.cluster.connectivity.probes import MakeSocket, full_size, probe_socket
from cni_calico.ctl.cluster.connectivity.sightings import Sighting, WirePlan, has_address, is_encrypted, packed
from cni_calico.deadline import Deadline
from cni_calico.kernel.wireguard.device import is_wireguard

# from <linux/if_ether.h>, <linux/if_packet.h> and <asm-generic/socket.h>
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_RCVBUFFORCE = 33
_ROOM = 16 << 20
_STATISTICS = struct.Struct("=II")  # packets, drops
_AT_ONCE = 20_000  # packets of one look: a busy host may not keep us from ending
_EACH = 10  # small packets with the token, and as many full ones
_ANSWER_S = 0.7


class Wires:
    """Raises OSError: no right to look."""

    def __init__(self, plan: WirePlan) -> None:
        self._tokens = {text: bytes.fromhex(text) for text in plan.tokens}
        self._pods, self._nodes = packed(plan.pods), packed(plan.nodes)
        self._devices, self._prefixes = {*plan.devices, "lo"}, tuple(plan.prefixes)
        self._is_wire: dict[str, bool] = {}
        self._readable: Counter[str] = Counter()
        self._encrypted: Counter[tuple[str, str]] = Counter()  # by version of IP and interface
        self._on: set[str] = set()
        self._missed = self._round = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
        self._socket.setblocking(False)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
        except PermissionError:  # as large as everybody may
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)

    def close(self) -> None:
        self._socket.close()

    def look(self) -> Sighting:
        """At all that has come since the last look."""
        for _ in range(_AT_ONCE):
            try:
                packet, (name, *_) = self._socket.recvfrom(1 << 16)
            except (BlockingIOError, InterruptedError):
                break
            self._take(packet, name)
        self._missed += _STATISTICS.unpack(self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1]
        self._round += 1
        most: dict[str, int] = {}
        for (version, _), count in self._encrypted.items():
            most[version] = max(most.get(version, 0), count)
        return Sighting(dict(self._readable), most, self._missed, sorted(self._on), self._round)

    def _take(self, packet: bytes, name: str) -> None:
        if not self._is_wire_named(name):
            return
        if is_encrypted(packet, self._nodes):
            self._encrypted[str(packet[0] >> 4), name] += 1
        found = [text for text, token in self._tokens.items() if token in packet]
        if not found and has_address(packet, self._pods):
            found = [""]
        if found:
            self._readable.update(found)
            self._on.add(name)

    def _is_wire_named(self, name: str) -> bool:
        if name not in self._is_wire:
            inside = (
                name in self._devices
                or name.startswith(self._prefixes)
                or is_wireguard(name, Deadline.after(_ANSWER_S))
            )
            self._is_wire[name] = not inside
        return self._is_wire[name]


def exchange(make: MakeSocket, address: str, token: str, between: Callable[[], object] = lambda: None) -> int:
    """Have the pod that answers at ``address`` send the token back in small and full packets, and send it over TCP;
    returns how many packets of UDP came there and back.
    """
    found = 0
    said = bytes.fromhex(token)
    with probe_socket(make, address) as probe:
        for size in (0, full_size(probe)):
            for number in range(_EACH):
                found += 2 * _comes_back(probe, (said + bytes([number])).ljust(size, b"."))
                between()
    _say_over_tcp(make, address, said)
    between()
    return found


def _comes_back(probe: socket.socket, data: bytes) -> bool:
    end = time.monotonic() + _ANSWER_S
    try:
        probe.send(data)
        while (left := end - time.monotonic()) > 0:
            probe.settimeout(left)
            if probe.recv(1 << 16) == data:
                return True
    except OSError:
        pass  # no answer in time, or an error that an earlier packet caused
    return False


def _say_over_tcp(make: MakeSocket, address: str, said: bytes) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with make(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect((address, OPEN_PORT))
            connection.sendall(said)
        except OSError:
            pass  # that it does not answer is another finding's


def new_token() -> str:
    return os.urandom(16).hex()


def watch(plan: WirePlan, make: MakeSocket, pause: Callable[[], None]) -> Iterator[Sighting]:
    """What was seen so far, again and again, for ever. Raises OSError."""
    wires = Wires(plan)
    try:
        yield wires.look()  # who waits for the first one knows that we look
        sent = {
            address: exchange(make, address, token, wires.look)
            for address, token in zip(plan.reach, plan.tokens, strict=False)
        }
        while True:
            one = wires.look()
            yield Sighting(one.readable, one.encrypted, one.missed, one.wires, one.round, sent)
            pause()
    finally:
        wires.close()
