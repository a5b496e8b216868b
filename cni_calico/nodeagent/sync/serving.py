"""Serves felix.PolicySync to the workloads that have a volume of the CSI driver, each at its own socket.

Rule: one thread does everything and waits for nobody: the engine hands values over, and a workload that does not read
within CUT_S, or asks for more than a reader has reason to, is cut off. Who is at the other end of a connection follows
from the socket that it came in by.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cni_calico.daemon.said import Said
from cni_calico.log import Log
from cni_calico.nodeagent.sync.accounts import ClusterAccounts
from cni_calico.nodeagent.sync.connections import WorkloadConnection
from cni_calico.nodeagent.sync.credentials import CredentialFiles, MountedVolume
from cni_calico.nodeagent.sync.http2 import INVALID_ARGUMENT, OK, UNIMPLEMENTED
from cni_calico.nodeagent.sync.known import EndpointName, KnownPolicies
from cni_calico.nodeagent.sync.messages import encode_receipt, parse_report, parse_request
from cni_calico.nodeagent.sync.sockets import VolumeSocket
from cni_calico.nodeagent.sync.subscription import Subscription
from cni_calico.policy.wanted import Wanted, WantedChanges

CUT_S = 30.0  # for a message of at most 4 MiB
UNREAD_S = 10.0
_LOOK_S = 0.1
_CONNECTIONS = 8  # of a workload
_EVENTS, _WINDOW_S, _PENALTY_S = 50, 1.0, 5.0  # connections and calls of a workload; what it gets for more
_TOO_FAST = "it opens connections or makes calls faster than a reader does"
_SYNC, _REPORT = "/felix.PolicySync/Sync", "/felix.PolicySync/Report"
_SHOWN = 5


class _Workload:
    """One volume's socket, with those who came in by it."""

    def __init__(self, volume: MountedVolume, socket: VolumeSocket, server: SyncServer) -> None:
        self.volume, self.socket, self.cut_s = volume, socket, server.cut_s
        self.connections: list[WorkloadConnection] = []
        self._server = server
        self._begun, self._events = 0.0, 0

    def spend(self) -> bool:
        """Whether it may have one more connection or call."""
        now = asyncio.get_running_loop().time()
        if now - self._begun >= _WINDOW_S:
            self._begun, self._events = now, 0
        self._events += 1
        return self._events <= _EVENTS

    def make_room(self) -> bool:
        """Whether there may be another connection; one that nobody reads by goes for it."""
        if len(self.connections) >= _CONNECTIONS:
            idle = next((connection for connection in self.connections if not connection.has_reader()), None)
            if idle is None:
                return False
            idle.cut()
        return True

    def has_reader(self) -> bool:
        return any(connection.has_reader() for connection in self.connections)

    def go_on(self) -> None:
        """Send what is due."""
        for connection in tuple(self.connections):
            connection.go_on()

    def cut(self) -> None:
        for connection in tuple(self.connections):
            connection.cut()

    # -- what a connection says ---------------------------------------------------------------------------------------

    def opened(self) -> None:
        if not self.spend():
            self._server.punish(self, _TOO_FAST)

    def called(self, connection: WorkloadConnection, stream: int, path: str, message: bytes) -> None:
        parse = {_SYNC: parse_request, _REPORT: parse_report}.get(path)
        if parse is None:
            connection.answer(stream, UNIMPLEMENTED, "there is no such method")
            return
        try:
            parse(message)
        except ValueError as e:
            connection.answer(stream, INVALID_ARGUMENT, str(e))
            return
        if path == _REPORT:
            connection.answer(stream, OK, message=encode_receipt())
            return
        for other in tuple(self.connections):
            other.leave()
        connection.join(stream, self._server.subscribe(self.volume.endpoint))

    def was_slow(self, connection: WorkloadConnection) -> None:
        self._server.tell_slow(self.volume.endpoint)
        connection.cut()

    def closed(self, connection: WorkloadConnection) -> None:
        self.connections.remove(connection)


class SyncServer:
    """``run`` in a thread of its own; the others may be called from any."""

    def __init__(self, prefix: str, log: Log, tell: Callable[[str], object], cut_s: float = CUT_S) -> None:
        """``tell`` is called with what is wrong, "" for nothing."""
        self._prefix, self._log, self._tell, self.cut_s = prefix, log, tell, cut_s
        self._said = Said(log)
        self._known, self._accounts = KnownPolicies(), ClusterAccounts()
        self._workloads: dict[str, _Workload] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard = threading.Lock()
        self._handed: deque[Callable[[], object]] = deque()
        self._broken: Exception | None = None
        self._unread: dict[EndpointName, float] = {}  # since when

    # -- in -----------------------------------------------------------------------------------------------------------

    def become(self, wanted: Wanted) -> None:
        """Everything that is in force."""
        self._hand_over(partial(self._known.become, wanted))

    def receive(self, changes: WantedChanges) -> None:
        """These have come into force."""
        self._hand_over(partial(self._receive, changes))

    def receive_profiles(self, labels: Mapping[str, Mapping[str, str] | None], *, complete: bool) -> None:
        """The labels of profiles, None for one that is gone. ``complete``: those before it were all there are."""
        self._hand_over(partial(self._put_profiles, labels, complete))

    def stop(self) -> None:
        """``run`` returns soon."""
        self._stopped.set()

    def _hand_over(self, work: Callable[[], object]) -> None:
        """Never fails: whoever hands over enforces policies."""
        with self._guard:
            self._handed.append(work)
            if self._loop is None:
                self._take_in()
            else:
                self._loop.call_soon_threadsafe(self._take_in_here)

    def _take_in(self) -> None:
        while self._handed:
            try:
                self._handed.popleft()()
            except Exception as e:  # nobody may go on with what is half known
                self._broken, self._known.ready = e, False

    def _take_in_here(self) -> None:
        if not self._handed or self._loop is None:
            return
        self._take_in()
        for workload in tuple(self._workloads.values()):
            try:
                workload.go_on()
            except Exception as e:  # what is due to one cannot be made of what is known
                self._broken, self._known.ready = e, False

    def _receive(self, changes: WantedChanges) -> None:
        if self._known.ready:
            self._known.receive(changes)

    def _put_profiles(self, labels: Mapping[str, Mapping[str, str] | None], complete: bool) -> None:
        for name, its in labels.items():
            self._accounts.put(name, its)
        self._accounts.complete |= complete

    # -- the thread ---------------------------------------------------------------------------------------------------

    def run(self, stopping: threading.Event) -> None:
        """Until ``stop`` or ``stopping``. Raises any error; everything in force has to be handed in again then."""
        asyncio.run(self._run(stopping))

    async def _run(self, stopping: threading.Event) -> None:
        try:
            await self._serve(stopping)
        finally:
            with self._guard:  # nothing of what was handed over goes with the loop
                self._take_in()
                self._loop = None

    async def _serve(self, stopping: threading.Event) -> None:
        files = CredentialFiles(self._prefix)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._fail)
        try:
            with self._guard:
                self._loop = loop
            while not (self._stopped.is_set() or stopping.is_set()):
                broken, self._broken = self._broken, None
                if broken is not None:
                    raise broken
                self._follow(files)
                await asyncio.sleep(_LOOK_S)
        finally:
            for volume in tuple(self._workloads):
                self._close(volume)
            self._tell("")

    def _fail(self, _: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Nobody knows what is half done: it begins again."""
        broken = context.get("exception")
        self._broken = broken if isinstance(broken, Exception) else RuntimeError(str(context.get("message")))

    def _follow(self, files: CredentialFiles) -> None:
        """Have a socket in each volume that there is, and in no other."""
        volumes = files.look()
        for name, workload in tuple(self._workloads.items()):
            if volumes.get(name) != workload.volume:
                self._close(name)
        troubles = list(files.troubles)
        for name in volumes.keys() - self._workloads:
            try:
                self._open(volumes[name])
            except OSError as e:
                where = f"cannot listen in {self._prefix}/mount/{name}"
                troubles.append(f"no policy sync for {volumes[name].endpoint[1]}: {where}: {e.strerror}")
        troubles += self._describe_unchecked()
        self._said.say("volumes", troubles)
        self._tell("; ".join(troubles))

    def _describe_unchecked(self) -> list[str]:
        """Those without a reader for a while: one that was here before us comes again."""
        read = {workload.volume.endpoint for workload in self._workloads.values() if workload.has_reader()}
        asking = self._known.asking() - read if self._known.ready else frozenset()
        now = asyncio.get_running_loop().time()
        self._unread = {name: self._unread.get(name, now) for name in asking}
        unread = sorted(name[1] for name, since in self._unread.items() if now - since >= UNREAD_S)
        if not unread:
            return []
        shown = ", ".join(unread[:_SHOWN]) + (f" and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else "")
        return [f"nobody checks requests to {shown}: no program there follows policy sync"]

    def _open(self, volume: MountedVolume) -> None:
        workload = _Workload(volume, VolumeSocket(self._prefix, volume.volume), self)
        self._workloads[volume.volume] = workload
        self._listen(workload)

    def _listen(self, workload: _Workload) -> None:
        if self._workloads.get(workload.volume.volume) is workload:
            asyncio.get_running_loop().add_reader(workload.socket.listener, self._accept, workload)

    def _close(self, volume: str) -> None:
        workload = self._workloads.pop(volume)
        asyncio.get_running_loop().remove_reader(workload.socket.listener)
        workload.socket.close()
        workload.cut()

    # -- connections --------------------------------------------------------------------------------------------------

    def _accept(self, workload: _Workload) -> None:
        try:
            accepted, _ = workload.socket.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as e:  # no descriptors: a level-triggered reader would spin
            self.punish(workload, f"cannot accept a connection: {e.strerror}")
            return
        if not workload.spend():
            accepted.close()
            self.punish(workload, _TOO_FAST)
            return
        if not workload.make_room():
            accepted.close()
            return
        connection = WorkloadConnection(workload)
        workload.connections.append(connection)
        task = asyncio.get_running_loop().create_task(self._open_connection(connection, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_connection(self, connection: WorkloadConnection, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=accepted)
        except OSError:
            connection.cut()
            accepted.close()

    def punish(self, workload: _Workload, why: str) -> None:
        """Nobody comes in by its socket for a while."""
        if self._workloads.get(workload.volume.volume) is not workload:
            return
        loop = asyncio.get_running_loop()
        self._said.once(f"policy sync of {workload.volume.endpoint[1]} is cut off for {_PENALTY_S:g} s: {why}")
        loop.remove_reader(workload.socket.listener)
        workload.cut()
        loop.call_later(_PENALTY_S, self._listen, workload)

    def subscribe(self, endpoint: EndpointName) -> Subscription:
        return Subscription(endpoint, self._known, self._accounts)

    def tell_slow(self, endpoint: EndpointName) -> None:
        self._log.warning(f"policy sync of {endpoint[1]} is cut off: it has not read a message for {self.cut_s:g} s")
