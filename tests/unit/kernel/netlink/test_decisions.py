"""Reports of decisions are taken apart, and what is none ends nothing."""

from __future__ import annotations

from errno import EAGAIN
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.netlink.decisions import _MESSAGE, _PACKET, DecisionReports, ReportedDecision, report_layouts
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES


class Parsed(DecisionReports):
    """Of a datagram, without a socket."""

    def __init__(self, data: bytes) -> None:
        self.lost = self.strange = self._next = self._assumed = 0
        self.sample, self._known = b"", {}
        self._layouts = report_layouts()
        self.found: list[ReportedDecision] = []
        self.parse(data)

    def parse(self, data: bytes) -> None:
        self._parse(data, self.found)


class Kernel:
    """``datagrams`` that wait in a socket, and how many it has ``dropped``."""

    def __init__(self) -> None:
        self.datagrams: list[bytes] = []
        self.dropped = 0

    def recv(self, size: int, flags: int) -> bytes:
        if not self.datagrams:
            raise BlockingIOError(EAGAIN, "nothing")
        return self.datagrams.pop(0)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return pack("=9I", *[0] * 8, self.dropped)[:size]


def attribute(kind: int, value: bytes) -> bytes:
    return pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def report(number: int, prefix: bytes, packet: bytes) -> bytes:
    body = bytes(GENERAL_BYTES) + attribute(10, prefix) + attribute(9, packet)
    body += attribute(12, number.to_bytes(4, "big"))
    return _MESSAGE.pack(_MESSAGE.size + len(body), _PACKET, 0, 0, 0) + body


def test_gaps_and_what_is_not_ours_are_counted() -> None:
    theirs = report(3, b"theirs\0", b"abcd")
    data = report(0, b"0000012c\0", b"abcd") + theirs + report(7, b"0000012d\0", b"efgh")
    one = Parsed(data)
    assert one.found == [(300, b"abcd"), (301, b"efgh")]
    assert (one.lost, one.strange) == (2 + 3, 1) and one.sample == theirs[:64]


@pytest.mark.parametrize(("number", "lost"), [(1, 0), (3, 2), (6, 5), (9, 8), (2**32 - 1, 2**32 - 2)])
@pytest.mark.parametrize("together", [1, 2])
def test_the_next_number_tells_whether_as_many_were_lost_as_was_assumed(number: int, lost: int, together: int) -> None:
    one = Parsed(report(0, b"0000012c\0", b"abcd"))
    one.assume_lost(2)
    assert one.lost == 2
    one.assume_lost(3)
    assert one.lost == 5
    following = range(number, number + together)
    one.parse(b"".join(report(each % 2**32, b"0000012c\0", b"abcd") for each in following))
    assert one.lost == lost and len(one.found) == 1 + together
    one.parse(report((number + together + 4) % 2**32, b"0000012c\0", b"abcd"))
    assert one.lost == lost + 4, "what follows is counted as ever"


def test_what_the_kernel_drops_is_known_until_a_number_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is full, is read out, and more is dropped before a report comes that says how many."""
    one = Parsed(b"")
    there = Kernel()
    monkeypatch.setattr(one, "_socket", there, raising=False)
    one._dropped = one._told = one.read = 0
    there.datagrams = [report(0, b"0000012c\0", b"abcd")]
    there.dropped = 3
    assert one.take(9) and one.has_dropped and one.lost == 0
    assert not one.take(9) and one.has_dropped
    there.datagrams, there.dropped = [report(7, b"0000012c\0", b"abcd")], 4  # the fourth after that one
    assert one.take(9) and one.lost == 6 and one.has_dropped
    there.datagrams = [report(9, b"0000012c\0", b"abcd")]
    assert one.take(9) and one.lost == 7 and not one.has_dropped


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 4))
def test_any_bytes_are_reports_or_counted(noise: bytes, cut: int, begin: int) -> None:
    """Also in the place of a part of a report."""
    good = report(0, b"0000012c\0", b"abcd") * 2
    for data in (noise, good[:cut] + noise, good[: begin * 8] + noise + good[begin * 8 + len(noise) :]):
        one = Parsed(data)
        assert all(isinstance(packet, bytes) and number >= 0 for number, packet in one.found)
        assert len(one.sample) <= 64 and bool(one.sample) == bool(one.strange)
