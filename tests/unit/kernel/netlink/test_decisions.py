"""Reports of decisions are taken apart, and what is none ends nothing."""

from __future__ import annotations

from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.netlink.decisions import _MESSAGE, _PACKET, DecisionReports, ReportedDecision, report_layouts
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES


class Parsed(DecisionReports):
    """Of a datagram, without a socket."""

    def __init__(self, data: bytes) -> None:
        self.lost = self.strange = self._next = 0
        self.sample, self._known = b"", {}
        self._layouts = report_layouts()
        self.found: list[ReportedDecision] = []
        self._parse(data, self.found)


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


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 4))
def test_any_bytes_are_reports_or_counted(noise: bytes, cut: int, begin: int) -> None:
    """Also in the place of a part of a report."""
    good = report(0, b"0000012c\0", b"abcd") * 2
    for data in (noise, good[:cut] + noise, good[: begin * 8] + noise + good[begin * 8 + len(noise) :]):
        one = Parsed(data)
        assert all(isinstance(packet, bytes) and number >= 0 for number, packet in one.found)
        assert len(one.sample) <= 64 and bool(one.sample) == bool(one.strange)
