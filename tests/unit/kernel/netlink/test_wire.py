"""The netlink frame: what the kernel may send is understood, anything else is a KernelError."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import addresses, links, routes, wire
from cni_calico.kernel.netlink.wire import Message

DECODERS: list[Callable[[bytes], object]] = [
    links.decode_link,
    links.decode_group,
    links.decode_listed,
    links.decode_netns_id,
    addresses.decode_address,
    addresses.address_index,
    addresses.decode_neighbour,
    routes.decode_route,
    lambda data: list(wire.split_messages(data)),
    lambda data: wire.parse_acknowledgement(Message(wire.NLMSG_ERROR, 0x200, 1, data)),
    lambda data: wire.parse_acknowledgement(Message(wire.NLMSG_ERROR, 0x300, 1, data)),
    lambda data: wire.parse_acknowledgement(Message(wire.NLMSG_DONE, 0x200, 1, data)),
]


def attribute_bytes() -> st.SearchStrategy[bytes]:
    """Well-formed attributes with any content, so that the fuzz reaches beyond the first length."""
    leaf = st.builds(wire.attribute, st.integers(0, 70), st.binary(max_size=24))
    return st.recursive(
        leaf,
        lambda inner: st.builds(lambda k, parts: wire.nested(k, *parts), st.integers(0, 70), st.lists(inner)),
        max_leaves=12,
    )


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(DECODERS), st.binary(max_size=120))
def test_arbitrary_bytes_never_crash(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decode(data)
    except KernelError:
        pass


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(DECODERS[:8]), st.binary(min_size=4, max_size=16), st.lists(attribute_bytes(), max_size=8))
def test_arbitrary_attributes_never_crash(decode: Callable[[bytes], object], head: bytes, parts: list[bytes]) -> None:
    try:
        decode(head + b"".join(parts))
    except KernelError:
        pass


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)), unique_by=lambda pair: pair[0]))
def test_attributes_come_back(pairs: list[tuple[int, bytes]]) -> None:
    written, asked = (
        b"".join(wire.attribute(kind, payload) for kind, payload in pairs),
        {kind for kind, _ in pairs[::2]},
    )
    assert wire.attributes(written) == dict(pairs)
    assert wire.some_attributes(written, 0, asked) == {kind: payload for kind, payload in pairs if kind in asked}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            Message, st.integers(0, 99), st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.binary(max_size=30)
        )
    )
)
def test_messages_come_back(messages: list[Message]) -> None:
    data = b""
    for kind, flags, seq, payload in messages:
        data += wire.HEADER.pack(16 + len(payload), kind, flags, seq, 0) + payload + bytes(-len(payload) % 4)
    # the kernel pads between messages, not after the last
    assert list(wire.split_messages(data)) == messages


@pytest.mark.parametrize("value", ["eth0", "", "ä" * 7])
def test_text(value: str) -> None:
    assert wire.name(wire.attributes(wire.text(3, value))[3]) == value


def test_what_is_no_text_stays_visible() -> None:
    assert wire.name(b"\xff\xfeab\0") == "\\xff\\xfeab"


def acknowledgement(errno: int, request: bytes, text: str, *, capped: bool) -> Message:
    flags = wire.NLM_F_ACK_TLVS | (wire.NLM_F_CAPPED if capped else 0)
    payload = struct.pack("=i", -errno) + wire.HEADER.pack(16 + len(request), 16, 0, 1, 0)
    payload += (b"" if capped else request + bytes(-len(request) % 4)) + wire.text(1, text)
    return Message(wire.NLMSG_ERROR, flags, 1, payload)


@pytest.mark.parametrize("capped", [True, False])
@pytest.mark.parametrize("length", [0, 5, 32])
def test_the_kernels_text_is_found(capped: bool, length: int) -> None:
    message = acknowledgement(22, bytes(length), "Invalid gateway", capped=capped)
    assert wire.parse_acknowledgement(message) == (22, "Invalid gateway")


def test_success() -> None:
    assert wire.parse_acknowledgement(acknowledgement(0, b"", "just a warning", capped=True)) == (0, "")
    assert wire.parse_acknowledgement(Message(wire.NLMSG_DONE, 0, 1, b"")) == (0, "")


def test_an_empty_acknowledgement_is_malformed() -> None:
    with pytest.raises(KernelError, match="cannot decode a netlink acknowledgement"):
        wire.parse_acknowledgement(Message(wire.NLMSG_ERROR, 0, 1, b""))
