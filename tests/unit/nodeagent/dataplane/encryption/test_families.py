"""Whether there is anything to do at all."""

from __future__ import annotations

import pytest

from cni_calico.model.wireguard import with_published_key
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encryption.families import concerns, is_enabled
from tests.unit.nodeagent.fabric import NODES

OFF = FelixSettings()


def test_off_and_nothing_left() -> None:
    assert not concerns(OFF, NODES["n1"], ("eth0", "wg0")) and not concerns(OFF, None, ())


@pytest.mark.parametrize("interfaces", [("wireguard.cali",), ("wg-v6.cali",)])
def test_a_device_that_is_left(interfaces: tuple[str, ...]) -> None:
    assert concerns(OFF, None, interfaces)


@pytest.mark.parametrize("family", [4, 6])
def test_a_key_that_is_left(family: int) -> None:
    assert concerns(OFF, with_published_key(NODES["n1"], family, "x"), ())


def test_ipv6_without_ipv6() -> None:
    assert not is_enabled(FelixSettings(wireguard_enabled_v6=True, ipv6_support=False))
    assert is_enabled(FelixSettings(wireguard_enabled_v6=True))
