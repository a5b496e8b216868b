"""The proof on the wire from one host: what its container and the host itself send to other hosts is looked for on this
host's own wires.

Rule: nobody there is asked, so what counts are packets that were sent and seen encrypted on the way out. Nothing of the
records is changed: where encryption is mandatory, an address that nobody holds stands for a node without a key.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from ipaddress import ip_address
from typing import Any

from cni_calico.ctl.cluster.connectivity.encrypted import EncryptedCluster
from cni_calico.ctl.cluster.connectivity.findings import FAILED, OK, SKIPPED, Trial
from cni_calico.ctl.cluster.connectivity.other_hosts import MOST, MakeAny, OtherHost, send_echoes
from cni_calico.ctl.cluster.connectivity.sightings import Sighting, WirePlan, judge
from cni_calico.ctl.cluster.connectivity.wires import Wires, new_token
from cni_calico.ctl.ipam.records import read_blocks, read_pools
from cni_calico.ctl.session import Session
from cni_calico.model.resources import Address

_EACH = 10  # small packets, and as many full ones
_PATIENCE_S, _PAUSE_S = 3.0, 0.05


class HostWires:
    """``own``: this host's node; ``said``: what its agent's status says of encryption; ``make``: sockets in the
    container, which has ``addresses``.
    """

    def __init__(
        self, encrypted: EncryptedCluster, own: str, said: Any, make: MakeAny, addresses: Collection[str]
    ) -> None:
        self.encrypted = encrypted
        self.own = own
        self.said: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
        self.make = make
        self.addresses = addresses

    def prove(self, session: Session, hosts: Sequence[OtherHost]) -> Iterator[Trial]:
        """Raises DatastoreError."""
        for host in hosts[:MOST]:
            for family in self.encrypted.families:
                if any(ip_address(text).version == family for text in self.addresses):
                    yield from self._to_host(host, family)
        for family in self.encrypted.families:
            if (self.said.get(str(family)) or {}).get("mandatory"):
                yield self._not_without_peer(session, family)

    def _to_host(self, host: OtherHost, family: int) -> Iterator[Trial]:
        what, ends = f"IPv{family} encryption", (self.own, host.name)
        where, target = " to ".join(ends), host.targets.get(family)
        exempt = self.encrypted.exempt(ends)
        if exempt or target is None:
            why = f"{exempt} is exempt, so reached in plain text" if exempt else "no container there has an address"
            yield Trial(what, SKIPPED, f"{where}: {why}")
            return
        excuse = self.encrypted.why_plain(ends, family)
        for name, make, pods in ((what, self.make, self.addresses), (f"{what} from this host", _own_socket, ())):
            token = new_token()
            try:
                sent, seen, encrypted = self._send(make, target, token, pods, ends)
            except OSError as e:
                yield Trial(name, SKIPPED, f"{where}: {e.strerror or e}")
            else:
                yield judge(name, where, token, sent, {self.own: (seen, encrypted)}, excuse)

    def _send(
        self, make: MakeAny, target: Address, token: str, pods: Collection[str], ends: Sequence[str]
    ) -> tuple[int, Sighting, int]:
        """How many were taken, what was seen, and how many went encrypted meanwhile. Raises OSError."""
        known = [str(one["device"]) for one in self.said.values()]
        plan = WirePlan(
            tokens=[token],
            pods=pods,
            nodes=self.encrypted.addresses(*ends),
            devices=[*self.encrypted.devices, *known],
            prefixes=self.encrypted.prefixes,
        )
        version, taken = str(target.version), 0
        with closing(Wires(plan)) as wires:
            for one in send_echoes(make, target, bytes.fromhex(token), _EACH):
                taken += one
                seen = wires.look()
            end = time.monotonic() + _PATIENCE_S
            while seen.encrypted.get(version, 0) < taken and time.monotonic() < end:
                time.sleep(_PAUSE_S)
                seen = wires.look()
        return taken, seen, seen.encrypted.get(version, 0)

    def _not_without_peer(self, session: Session, family: int) -> Trial:
        """Where it is mandatory, nothing goes to an address of a pool that no node holds."""
        what = f"IPv{family} encryption is mandatory"
        address = find_unheld(session, family)
        if address is None:
            return Trial(what, SKIPPED, "every address of the pools is in a block of some node")
        token = new_token()
        try:
            _, seen, _ = self._send(self.make, address, token, (), (self.own,))
        except OSError as e:  # it has no route
            return Trial(what, OK, f"{address}, which no node holds, is not reached: {e.strerror or e}")
        if count := seen.readable.get(token, 0):
            wires = ", ".join(seen.wires)
            return Trial(what, FAILED, f"{count} packets to {address}, which no node holds, can be read on {wires}")
        return Trial(what, OK, f"nothing goes to {address}, which no node holds")


def find_unheld(session: Session, family: int) -> Address | None:
    """The last address of a pool that is in no block. Raises DatastoreError."""
    blocks = [cidr for cidr in read_blocks(session, []) if cidr.version == family]
    for pool in read_pools(session, []):
        last = pool.cidr.broadcast_address
        if pool.cidr.version == family and not pool.disabled and not any(last in cidr for cidr in blocks):
            return last
    return None


def _own_socket(family: int, kind: int, protocol: int) -> socket.socket:
    return socket.socket(family, kind, protocol)
