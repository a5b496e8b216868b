"""What became of streams of packets, step by step of a test; a line of it at the end of the run.

Rule: a packet counts in the step in which it was sent, a readable one in that in which it was seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.conftest import SUMMARY
from tests.kernels.features import has
from tests.netns.encrypted import Stream


@dataclass(frozen=True)
class _Part:
    """Of one stream: the numbers of the packets that were sent each way, from and up to; how many were readable."""

    stream: Stream
    begun: tuple[int, ...]
    ended: tuple[int, ...]
    readable: int

    def lost(self) -> int:
        ways = zip(self.begun, self.ended, self.stream.arrived, strict=True)
        return sum(number not in arrived for begun, ended, arrived in ways for number in range(begun, ended))

    def sent(self) -> int:
        return sum(self.ended) - sum(self.begun)


class Steps:
    def __init__(self) -> None:
        self._parts: dict[str, list[_Part]] = {}
        self._at: dict[int, tuple[tuple[int, ...], int]] = {}
        self._streams: list[Stream] = []

    def ended(self, step: str, *streams: Stream) -> None:
        """What the streams have sent since the last step of each (or since it began) is this step's."""
        for stream in streams:
            begun, readable = self._at.get(id(stream), ((0, 0), 0))
            self.skip(stream)
            now, seen = self._at[id(stream)]
            self._parts.setdefault(step, []).append(_Part(stream, begun, now, seen - readable))

    def skip(self, stream: Stream) -> None:
        """What it has sent until now is of no step."""
        self._streams.append(stream)  # its id stays its own
        self._at[id(stream)] = tuple(stream.sent), stream.readable()

    def line(self, of: str) -> str:
        """Of each step: packets sent, lost, readable."""
        by = f"Linux {os.uname().release}" if has("wireguard") else "wireguard-go"
        said = [
            f"{step} {sum(p.sent() for p in parts)}/{sum(p.lost() for p in parts)}/{sum(p.readable for p in parts)}"
            for step, parts in self._parts.items()
        ]
        return f"{of}, {by}, sent/lost/readable: {', '.join(said)}"

    def stop(self) -> None:
        for stream in self._streams:
            stream.stop()


@contextmanager
def told_steps(record_property: Callable[[str, object], None], of: str) -> Iterator[Steps]:
    """Told at the end, whatever it is, once the streams have stopped."""
    steps = Steps()
    try:
        yield steps
    finally:
        steps.stop()
        record_property(SUMMARY, steps.line(of))
