"""Serves felix.PolicySync to the workloads that have a volume of the CSI driver, each at its own socket.

Rule: one thread does everything and waits for nobody: the engine hands values over, and a workload that does not read
within CUT_S, or asks for more than a reader has reason to, is cut off. Who is at the other end of a connection follows
from the socket that it came in by.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from cni_calico.daemon.said import Said
from cni_calico.log import Log
from cni_calico.nodeagent.sync.accounts import ClusterAccounts, TooFarBehind
from cni_calico.nodeagent.sync.bridge import Bridge
from cni_calico.nodeagent.sync.credentials import CredentialFiles, MountedVolume
from cni_calico.nodeagent.sync.known import EndpointName, KnownPolicies
from cni_calico.nodeagent.sync.messages import encode_receipt, parse_report, parse_request
from cni_calico.nodeagent.sync.sockets import VolumeSocket
from cni_calico.nodeagent.sync.subscription import Subscription
from cni_calico.policy.wanted import Wanted, WantedChanges
from cni_calico.regular import make_directories
from cni_calico.slim_grpc import load_grpc, load_grpc_aio

CUT_S = 30.0  # for a message of at most 4 MiB
UNREAD_S = 10.0
_LOOK_S = 0.1
_CONNECTIONS, _STREAMS = 8, 4  # of a workload, of a connection
_EVENTS, _WINDOW_S, _PENALTY_S = 50, 1.0, 5.0  # connections and calls of a workload; what it gets for more
_SERVICE = "felix.PolicySync"
_SHOWN = 5
_PEER = "unix-abstract:"


class _JoinedReader:
    """A reader; ``changed`` wakes it."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.changed = asyncio.Event()
        self.ended = False

    def end(self) -> None:
        self.ended = True
        self.changed.set()


class _Workload:
    """One volume's socket, with those who came in by it."""

    def __init__(self, volume: MountedVolume, socket: VolumeSocket) -> None:
        self.volume, self.socket = volume, socket
        self.bridges: list[Bridge] = []
        self.stream: _JoinedReader | None = None
        self._begun, self._events = 0.0, 0

    def spend(self, now: float) -> bool:
        """Whether it may have one more connection or call."""
        if now - self._begun >= _WINDOW_S:
            self._begun, self._events = now, 0
        self._events += 1
        return self._events <= _EVENTS

    def make_room(self) -> bool:
        """Whether there may be another connection; one that nobody reads by goes for it."""
        if len(self.bridges) >= _CONNECTIONS:
            idle = next((bridge for bridge in self.bridges if not bridge.joined), None)
            if idle is None:
                return False
            idle.cut()
        return True

    def cut(self) -> None:
        for bridge in tuple(self.bridges):
            bridge.cut()


class SyncServer:
    """``run`` in a thread of its own; the others may be called from any."""

    def __init__(
        self, prefix: str, run_dir: str, log: Log, tell: Callable[[str], object], cut_s: float = CUT_S
    ) -> None:
        """``tell`` is called with what is wrong, "" for nothing."""
        self._prefix, self._run_dir, self._log, self._tell = prefix, run_dir, log, tell
        self._cut_s = cut_s
        self._said = Said(log)
        self._known, self._accounts = KnownPolicies(), ClusterAccounts()
        self._workloads: dict[str, _Workload] = {}
        self._peers: dict[str, tuple[_Workload, Bridge]] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard = threading.Lock()
        self._handed: deque[Callable[[], object]] = deque()
        self._broken: Exception | None = None
        self._inner = ""
        self._unread: dict[EndpointName, float] = {}  # since when
        self._aio, self._grpc = load_grpc_aio(), load_grpc()

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
        for workload in self._workloads.values():
            if workload.stream is not None:
                workload.stream.changed.set()

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
        directory = f"{self._run_dir}/policy-sync"
        make_directories(directory, 0o700)
        inside = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._inner = f"/proc/self/fd/{inside}/socket"  # a path of any length
        server = self._make_server()
        files = CredentialFiles(self._prefix)
        try:
            await server.start()
            with self._guard:
                self._loop = asyncio.get_running_loop()
            while not (self._stopped.is_set() or stopping.is_set()):
                broken, self._broken = self._broken, None
                if broken is not None:
                    raise broken
                self._follow(files)
                await asyncio.sleep(_LOOK_S)
        finally:
            for volume in tuple(self._workloads):
                self._close(volume)
            await server.stop(None)
            with suppress(OSError):
                os.unlink(self._inner)
            os.close(inside)
            self._tell("")

    def _make_server(self) -> Any:
        options = (
            ("grpc.max_concurrent_streams", _STREAMS),
            ("grpc.max_receive_message_length", 64 << 10),
            ("grpc.max_metadata_size", 8 << 10),
            ("grpc.so_reuseport", 0),
        )
        server = self._aio.server(options=options)
        handlers = {
            "Sync": self._grpc.unary_stream_rpc_method_handler(self._sync),
            "Report": self._grpc.unary_unary_rpc_method_handler(self._report),
        }
        server.add_generic_rpc_handlers([self._grpc.method_handlers_generic_handler(_SERVICE, handlers)])
        server.add_insecure_port(f"unix:{self._inner}")
        return server

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
        read = {workload.volume.endpoint for workload in self._workloads.values() if workload.stream is not None}
        asking = self._known.asking() - read if self._known.ready else frozenset()
        now = asyncio.get_running_loop().time()
        self._unread = {name: self._unread.get(name, now) for name in asking}
        unread = sorted(name[1] for name, since in self._unread.items() if now - since >= UNREAD_S)
        if not unread:
            return []
        shown = ", ".join(unread[:_SHOWN]) + (f" and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else "")
        return [f"nobody checks requests to {shown}: no program there follows policy sync"]

    def _open(self, volume: MountedVolume) -> None:
        workload = _Workload(volume, VolumeSocket(self._prefix, volume.volume))
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
            self._punish(workload, f"cannot accept a connection: {e.strerror}")
            return
        if not workload.spend(asyncio.get_running_loop().time()):
            accepted.close()
            self._punish(workload, "it opens connections or makes calls faster than a reader does")
            return
        if not workload.make_room():
            accepted.close()
            return
        bridge = Bridge(partial(self._closed, workload))
        workload.bridges.append(bridge)
        task = asyncio.get_running_loop().create_task(self._join(workload, bridge, accepted))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _join(self, workload: _Workload, bridge: Bridge, accepted: Any) -> None:
        try:
            await bridge.open(self._inner)
            self._peers[bridge.name] = workload, bridge
            await bridge.join(accepted)
        except OSError:
            bridge.cut()
            accepted.close()

    def _closed(self, workload: _Workload, bridge: Bridge) -> None:
        workload.bridges.remove(bridge)
        self._peers.pop(bridge.name, None)

    def _punish(self, workload: _Workload, why: str) -> None:
        """Nobody comes in by its socket for a while."""
        if self._workloads.get(workload.volume.volume) is not workload:
            return
        loop = asyncio.get_running_loop()
        self._said.once(f"policy sync of {workload.volume.endpoint[1]} is cut off for {_PENALTY_S:g} s: {why}")
        loop.remove_reader(workload.socket.listener)
        workload.cut()
        loop.call_later(_PENALTY_S, self._listen, workload)

    # -- calls --------------------------------------------------------------------------------------------------------

    async def _caller(
        self, request: bytes, parse: Callable[[bytes], None], context: Any
    ) -> tuple[_Workload, Bridge] | None:
        """None, and the call is over, if that may make no more calls."""
        found = self._peers.get(context.peer().removeprefix(_PEER))
        if found is None:
            await context.abort(self._grpc.StatusCode.UNAUTHENTICATED, "not a workload's connection")
        elif not found[0].spend(asyncio.get_running_loop().time()):
            self._punish(found[0], "it opens connections or makes calls faster than a reader does")
            return None
        try:
            parse(request)
        except ValueError as e:  # not by gRPC, which would log where it happened
            await context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, str(e))
        return found

    async def _report(self, request: Any, context: Any) -> Any:
        await self._caller(request, parse_report, context)
        return encode_receipt()

    async def _sync(self, request: Any, context: Any) -> None:
        caller = await self._caller(request, parse_request, context)
        if caller is None:
            return
        workload, bridge = caller
        stream = _JoinedReader(Subscription(workload.volume.endpoint, self._known, self._accounts))
        if workload.stream is not None:
            workload.stream.end()
        workload.stream, bridge.joined = stream, True
        try:
            await self._write(stream, bridge, context)
        except TooFarBehind:
            await context.abort(self._grpc.StatusCode.UNAVAILABLE, "too far behind: join again")
        finally:
            if workload.stream is stream:
                workload.stream = None
            bridge.joined = False

    async def _write(self, stream: _JoinedReader, bridge: Bridge, context: Any) -> None:
        """Raises TooFarBehind."""
        loop = asyncio.get_running_loop()
        while not stream.ended:
            stream.changed.clear()
            for message in stream.subscription.due():
                cutting = loop.call_later(self._cut_s, self._cut_slow, stream, bridge)
                try:
                    await context.write(message)
                finally:
                    cutting.cancel()
            if stream.subscription.ended:
                return
            await stream.changed.wait()

    def _cut_slow(self, stream: _JoinedReader, bridge: Bridge) -> None:
        workload = stream.subscription.name[1]
        self._log.warning(f"policy sync of {workload} is cut off: it has not read a message for {self._cut_s:g} s")
        bridge.cut()
