"""Addresses with a zone are refused: Python's parsers take any text behind a "%", and give it back."""

from __future__ import annotations

import pytest

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents import codec
from cni_calico.model.documents.fields import Wrong, parse_address, parse_interface, parse_network
from cni_calico.model.keys import AffinityKey, HandleKey, ResourceKey, parse_path

ZONED = '::1%0; }\nprotocol "evil" {'


@pytest.mark.parametrize("parse", [parse_address, parse_interface, parse_network])
def test_of_a_field(parse) -> None:
    with pytest.raises(Wrong):
        parse(ZONED, "at")


def test_of_a_node_and_a_handle() -> None:
    with pytest.raises(CorruptRecord):
        codec.decode(ResourceKey("Node", "a"), {"spec": {"bgp": {"ipv6Address": "fe80::1%eth0/64"}}})
    with pytest.raises(CorruptRecord):
        codec.decode(HandleKey("h"), {"block": {"fe80::%eth0/122": 1}})


def test_of_a_key() -> None:
    assert isinstance(parse_path("/calico/ipam/v2/host/a/ipv6/block/fd65::40-122"), AffinityKey)
    assert parse_path("/calico/ipam/v2/host/a/ipv6/block/fd65::40%x-122") is None
