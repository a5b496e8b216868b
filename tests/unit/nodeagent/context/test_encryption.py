"""The parameters of encryption, from the environment and from FelixConfigurations as upstream writes them."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.nodeagent.context.encryption import select_tables
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix


def test_a_resource_as_upstream_writes_it() -> None:
    spec = {
        "wireguardEnabled": True,
        "wireguardEnabledV6": True,
        "wireguardListeningPort": 1234,
        "wireguardInterfaceName": "wg.one",
        "wireguardMTU": 1300,
        "wireguardRoutingRulePriority": 98,
        "wireguardKeepAlive": "25s",
        "wireguardThreadingEnabled": True,
        "routeTableRanges": [{"min": 7, "max": 9}, {"min": 300, "max": 400}],
    }
    parsed = parse_felix({}, None, spec)
    assert not parsed.warnings
    found = parsed.settings
    assert (found.wireguard_enabled, found.wireguard_enabled_v6, found.wireguard_port) == (True, True, 1234)
    assert (found.wireguard_name, found.wireguard_mtu, found.wireguard_priority) == ("wg.one", 1300, 98)
    assert (found.wireguard_keepalive_s, found.wireguard_threading) == (25, True)
    assert found.route_tables == ((7, 9), (300, 400))


def test_how_old_a_key_may_be() -> None:
    found = parse_felix({"FELIX_WIREGUARDROTATEEVERY": "720h"})
    assert found.settings.wireguard_every_s == 720 * 3600 and not found.warnings
    assert parse_felix({}, None, {"wireguardRotateEvery": "7200"}).settings.wireguard_every_s == 7200


def test_the_environment_has_two_other_names() -> None:
    found = parse_felix({"FELIX_WIREGUARDPERSISTENTKEEPALIVE": "1.5", "FELIX_ROUTETABLERANGE": "5-6"}).settings
    assert (found.wireguard_keepalive_s, found.route_tables) == (2, ((5, 6),))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wireguardListeningPort", 0),
        ("wireguardListeningPort", 65536),
        ("wireguardInterfaceName", "a/b"),
        ("wireguardInterfaceName", ".."),
        ("wireguardInterfaceName", "sixteen-letters-"),
        ("wireguardRoutingRulePriority", 32766),
        ("wireguardKeepAlive", "-1"),
        ("wireguardKeepAlive", "65536s"),
        ("wireguardRotateEvery", "60"),
        ("routeTableRanges", [{"min": 9, "max": 7}]),
        ("routeTableRanges", ["1"]),
        ("routeTableRanges", {"min": "x"}),
    ],
)
def test_what_is_no_value_is_the_default(name: str, value: Any) -> None:
    parsed = parse_felix({}, None, {name: value})
    assert parsed.settings == FelixSettings() and len(parsed.warnings) == 1


@pytest.mark.parametrize(
    ("own", "default", "said"),
    [
        ({"wireguardListeningPort": 51999}, None, "wireguardListeningPort=51999 of FelixConfiguration node.<name>"),
        ({"wireguardListeningPortV6": 51999}, {}, "wireguardListeningPortV6=51999 of FelixConfiguration node.<name>"),
        ({"wireguardListeningPort": 51820}, {"wireguardListeningPort": 51999}, "differs from 51999"),
        ({"wireguardListeningPort": 51820}, None, ""),
        ({"wireguardListeningPort": "51999"}, {"wireguardListeningPort": 51999}, ""),
        (None, {"wireguardListeningPort": 51999}, ""),
    ],
)
def test_a_port_of_one_node_alone(own: Any, default: Any, said: str) -> None:
    """It is used, and others do not know it."""
    warnings = parse_felix({}, own, default).warnings
    assert len(warnings) == bool(said) and said in "".join(warnings)


@pytest.mark.parametrize(
    ("ranges", "table"),
    [
        (((1, 250),), 1),
        (((253, 300),), 256),
        (((253, 255),), 0),
        (((254, 255), (9, 9)), 9),
        (((4294967295,) * 2,), 4294967295),
    ],
)
def test_the_kernels_own_tables_are_not_used(ranges: Any, table: int) -> None:
    assert select_tables(ranges, 1) == ((table,) if table else ())


def test_several_tables() -> None:
    assert select_tables(((252, 257), (252, 300)), 4) == (252, 256, 257, 258)
    assert select_tables(((7, 7),), 2) == (7,)
