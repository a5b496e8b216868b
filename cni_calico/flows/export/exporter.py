"""The export of flows, for the recorder: sums what records become, and hands each interval to the collectors.

Rule: the recorder never waits for a collector, and what is exported changes nothing in what is recorded. Loaded by the
recorder once there is a collector, with gRPC, which takes time and memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from cni_calico.errors import CalicoError
from cni_calico.flows.deciders import Decider
from cni_calico.flows.export.channels import is_plain, is_socket, open_local, open_server
from cni_calico.flows.export.client import CollectorClient
from cni_calico.flows.export.intervals import EndLabels, ExportedFlow, IntervalSums
from cni_calico.flows.export.keys import KeyMaker, PendingOf
from cni_calico.flows.export.outbox import Outbox
from cni_calico.flows.export.wanted import EXPORT, SOCKET, EndPath, ExportedEnd, Target, parse_export
from cni_calico.flows.names import EndName, FollowedFile
from cni_calico.flows.network_sets import SetOf
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.services import ServiceOf
from cni_calico.kernel.ways import KernelWays
from cni_calico.log import Log

_NO_LABELS: EndLabels = {}
_MOST_GONE = 20_000
_ENDS_S = 1.0  # less than the recorder is given to end


class Exporter:
    """``note`` each change of a record, ``look`` often; ``wanted``: whether there is a collector. ``oldest``: the
    number of the oldest record that may still be there. ``is_here``: whether an address is one of this node's ends;
    ``elsewhere``: what another node's end is called; ``set_of``: in which network set an address is that has no name,
    for somebody in a namespace; ``service_of``: to which service a connection was sent. ``now``: seconds since 1970;
    ``clock`` never steps.
    """

    def __init__(
        self,
        run_dir: str,
        oldest: Callable[[], int],
        decider_of: Callable[[int], Decider | None],
        name_of: Callable[[int], EndName | None],
        passed_by: Callable[[FlowRecord, Decider], list[dict[str, Any]] | None],
        is_here: Callable[[bytes], bool],
        elsewhere: Callable[[EndPath], ExportedEnd | None],
        pending: PendingOf,
        set_of: SetOf,
        log: Log,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        service_of: ServiceOf = lambda record: None,
    ) -> None:
        self._oldest, self._log, self._now, self._clock = oldest, log, now, clock
        self._name_of = name_of
        self._file = FollowedFile(f"{run_dir}/{EXPORT}")
        self._socket = f"{run_dir}/{SOCKET}"
        self._ends: dict[EndPath, ExportedEnd] = {}
        self._gone: dict[EndPath, ExportedEnd] = {}
        self._target = Target("")
        self._elsewhere, self._set_of = elsewhere, set_of
        told = passed_by, is_here, pending, set_of, service_of
        host_of = partial(self._host_of, KernelWays(clock))
        self._keys = KeyMaker(decider_of, name_of, self._shared, *told, host_of=host_of)
        self._sums = IntervalSums(self._keys.keys, self._labels)
        self._server: CollectorClient | None = None
        self._local: CollectorClient | None = None
        self._threads: dict[CollectorClient, threading.Thread] = {}
        self._began, self._label = clock(), int(now())
        self.wanted = True
        self.note = self._sums.note
        self.look()

    # -- what the agent says ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take in what the agent says, and hand on an interval that is over."""
        if self._file.changed():
            self._read()
        elif self.wanted and not os.path.exists(self._file.path):
            self.wanted = False
            return
        if self._target.local:
            self._look_for_listener()
        for client in (self._server, self._local):
            if client is not None:
                client.tend()
        if self._clock() - self._began >= self._target.interval_s:
            self._flush()

    def _read(self) -> None:
        try:
            target, ends = parse_export(self._file.read())
        except ValueError:
            return  # it is replaced as a whole; the next one can be read
        self.wanted = True
        gone = {path: end for path, end in self._ends.items() if path not in ends}
        self._gone = dict([*self._gone.items(), *gone.items()][-_MOST_GONE:])
        self._ends = ends
        self._keys.forget()
        if target == self._target:
            return
        former, self._target = self._target, target
        if _endpoint(former) != _endpoint(target):
            self._server = self._begun_anew(self._server, self._client_of(target))
        if not target.local:
            self._local = self._begun_anew(self._local, None)

    def _client_of(self, target: Target) -> CollectorClient | None:
        if not target.server:
            return None
        if is_plain(target):
            self._log.warning(f"flows go to {target.server} unencrypted, and it is not checked: no TLS is set")
        return CollectorClient(target.server, lambda grpc: open_server(grpc, target), self._log)

    def _look_for_listener(self) -> None:
        """Somebody who looks at flows on this node makes a socket, and removes it."""
        there = is_socket(self._socket)
        if there and self._local is None:
            local = CollectorClient(self._socket, lambda grpc: open_local(grpc, self._socket), self._log, Outbox(0.0))
            self._local = self._begun_anew(None, local)
        elif not there and self._local is not None:
            self._local = self._begun_anew(self._local, None)

    def _begun_anew(self, former: CollectorClient | None, client: CollectorClient | None) -> CollectorClient | None:
        if former is not None:
            former.stop()
            self._threads.pop(former, None)
        if client is not None:
            thread = self._threads[client] = threading.Thread(target=client.run, name="export", daemon=True)
            thread.start()
        return client

    # -- intervals ----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        now, clock = self._now(), self._clock()
        flows = self._sums.take(self._label, self._oldest())
        self._keys.forget()
        self._began, self._label = clock, max(int(now), self._label + 1)
        self._hand_on(flows)

    def _hand_on(self, flows: list[ExportedFlow]) -> None:
        for client in (self._server, self._local):
            if client is not None:
                client.offer(flows)

    def close(self) -> None:
        """What has not been handed on is given the collectors a moment to take."""
        self._flush()
        ends = time.monotonic() + _ENDS_S
        for client in (self._server, self._local):
            while client is not None and client.connected and len(client.outbox) and time.monotonic() < ends:
                threading.Event().wait(0.02)
        for client, thread in tuple(self._threads.items()):
            client.stop()
            thread.join(max(0.0, ends - time.monotonic()))
        self._threads.clear()
        self._server = self._local = None

    # -- names --------------------------------------------------------------------------------------------------------

    def _find(self, name: EndName | None) -> ExportedEnd | None:
        if name is None:
            return None
        path = name.namespace, name.name
        return self._ends.get(path) or self._elsewhere(path) or self._gone.get(path)

    def _shared(self, name: EndName) -> str:
        found = self._find(name)
        return name.name if found is None else found.name

    def _host_of(self, ways: KernelWays, address: bytes) -> str:
        if not self._target.host:
            return ""
        try:
            return self._target.host if address in ways.addresses() else ""
        except CalicoError:
            return ""  # they are asked for again

    def _labels(self, record: FlowRecord) -> tuple[EndLabels, EndLabels]:
        """The host itself has none."""
        source, destination = self._name_of(record.source_end), self._name_of(record.destination_end)
        ends = (source, record.source, destination), (destination, record.destination, source)
        hosts = self._keys.hosts(record)
        found = [_NO_LABELS if host else self._labels_of(*end) for host, end in zip(hosts, ends, strict=True)]
        return found[0], found[1]

    def _labels_of(self, name: EndName | None, address: bytes, other: EndName | None) -> EndLabels:
        """``other``: who talks with it."""
        if name is not None:
            end = self._find(name)
            return _NO_LABELS if end is None else end.labels
        within = self._set_of(address, "" if other is None else other.namespace)
        return _NO_LABELS if within is None else within.labels

    def status(self) -> dict[str, Any]:
        """None of it is of a local listener's."""
        server, sums = self._server, self._sums
        said: dict[str, Any] = {"server": self._target.server, "local": self._local is not None}
        if server is not None:
            said |= {
                "plain": is_plain(self._target),
                "connected": server.connected,
                "trouble": server.trouble,
                "received": server.outbox.received,
                "lost": server.outbox.lost + sums.lost,
                "queue": len(server.outbox),
                "undecided": sums.undecided,
                "unknown_hits": sums.unknown_hits,
            }
        return said


def _endpoint(target: Target) -> tuple[str, ...]:
    return target.server, target.authority, target.certificate, target.key
