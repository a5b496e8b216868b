"""Sends updates to a collector: one stream, up to 256 updates without receipt, and again what has none.

Rule: whoever hands updates in never waits. An update that a collector has acknowledged is sent again only to one that
is seen to be new, and so has forgotten it: a repetition from another port would be counted twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cni_calico.backoff import Backoff
from cni_calico.errors import CalicoError
from cni_calico.flows.export.intervals import ExportedFlow
from cni_calico.flows.export.messages import METHOD, encode_update
from cni_calico.flows.export.outbox import Outbox
from cni_calico.log import Log
from cni_calico.slim_grpc import load_grpc

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0
NEW_AFTER_S, STALLED_S = 15.0, 30.0
_TEXT_MAX = 300


class NotExported(CalicoError):
    """Nothing can be sent as things are; the text says why."""


@dataclass(slots=True)
class _ExportStream:
    """``moved``: when something was last sent or answered while something is unanswered."""

    moved: float
    call: Any = None
    connected: bool = False
    answered: bool = False


class CollectorClient:
    """``run`` in a thread of its own until ``stop``. ``open_channel``: a new channel of gRPC's, or NotExported is
    raised; ``pauses``: between attempts. ``trouble``: why nothing is sent now, "" for nothing.
    """

    def __init__(
        self,
        name: str,
        open_channel: Callable[[Any], Any],
        log: Log,
        outbox: Outbox | None = None,
        pauses: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._open_channel, self._log, self._clock = name, open_channel, log, clock
        self._grpc = load_grpc()
        self._pauses = pauses or Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._changed = threading.Condition()
        self.outbox = outbox or Outbox()
        self._stream: _ExportStream | None = None
        self._broke: float | None = None  # when the last connection ended
        self._refused = False
        self._stopping = threading.Event()
        self.trouble = self._logged = ""

    # -- for the recorder ---------------------------------------------------------------------------------------------

    def offer(self, flows: Iterable[ExportedFlow]) -> None:
        with self._changed:
            self.outbox.add(flows)
            self._changed.notify_all()

    @property
    def connected(self) -> bool:
        stream = self._stream
        return stream is not None and stream.connected

    def tend(self) -> None:
        """From time to time: end a stream on which nothing is answered any more."""
        with self._changed:
            stream = self._stream
            stalled = self.outbox.unanswered and stream is not None and self._clock() - stream.moved > STALLED_S
        if stalled and stream is not None and stream.call is not None:
            stream.call.cancel()

    def stop(self) -> None:
        self._stopping.set()
        stream = self._stream
        if stream is not None and stream.call is not None:
            stream.call.cancel()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._send()
            except NotExported as e:
                self._note(str(e))
            self._stopping.wait(self._pauses.next())

    def _note(self, trouble: str) -> None:
        if trouble != self._logged and not self._stopping.is_set():
            self._log.warning(trouble)
            self._logged = trouble
        self.trouble = trouble

    def _send(self) -> None:
        """Until it ends. Raises NotExported."""
        with self._open_channel(self._grpc) as channel:
            stream = self._stream = _ExportStream(self._clock())
            ready = self._grpc.ChannelConnectivity.READY
            channel.subscribe(lambda state: self._connect(stream) if state is ready else None)
            try:
                stream.call = channel.stream_stream(METHOD)(self._updates(stream))
                if self._stopping.is_set():
                    stream.call.cancel()
                for _ in stream.call:
                    self._connect(stream)
                    self._receive(stream)
                raise NotExported(f"flows are not exported: {self.name} ended the stream")
            except self._grpc.RpcError as e:
                text = _short(e.details() or e.code().name)
                self._refused |= "refused" in text.lower()
                raise NotExported(f"flows are not exported: cannot reach {self.name}: {text}") from e
            finally:
                self._end(stream)

    def _updates(self, stream: _ExportStream) -> Iterator[bytes]:
        """What gRPC sends, in a thread of gRPC's; it ends with the stream."""
        while True:
            with self._changed:
                data = self._next(stream)
            if data is None:
                return
            yield data

    def _next(self, stream: _ExportStream) -> bytes | None:
        """None once the stream has ended. An update of which no message can be made is not tried again."""
        while self._stream is stream:
            if not self.outbox.unanswered:
                stream.moved = self._clock()
            flow = self.outbox.send()
            if flow is None:
                self._changed.wait()
                continue
            try:
                return encode_update(flow)
            except ValueError:
                self.outbox.discard()
        return None

    def _connect(self, stream: _ExportStream) -> None:
        if stream.connected:
            return
        with self._changed:
            if stream.connected or self._stream is not stream:
                return
            now = self._clock()
            if self._broke is not None and (self._refused or now - self._broke > NEW_AFTER_S):
                self.outbox.repeat(now)
            stream.connected, self._refused, self.trouble = True, False, ""
            self._changed.notify_all()

    def _receive(self, stream: _ExportStream) -> None:
        with self._changed:
            stream.moved = self._clock()
            self.outbox.acknowledge(stream.moved)
            self._changed.notify_all()
        if not stream.answered:
            stream.answered, self._logged = True, ""
            self._pauses.reset()
            self._log.info(f"exporting flows to {self.name}")

    def _end(self, stream: _ExportStream) -> None:
        with self._changed:
            self._stream = None
            self.outbox.interrupt()
            if stream.connected:
                self._broke = self._clock()
            self._changed.notify_all()


def _short(text: str) -> str:
    """The text of another program on one line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _TEXT_MAX else line[: _TEXT_MAX - 3] + "..."
