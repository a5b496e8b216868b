"""Parameters that change while pods talk, and the families apart from one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.netns.encrypted import EncryptedPair, encrypted_pair, felix_default
from tests.netns.nodes import until_all_reach_all
from tests.netns.steps import told_steps
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.stock, pytest.mark.slow, pytest.mark.timeout(900)]
V6 = {"IP6": "autodetect", "FELIX_IPV6SUPPORT": "true"}


def rules(pair: EncryptedPair, name: str) -> set[tuple[int, Any]]:
    """Those for what is encrypted: priority, mark."""
    there = pair.nodes[name].ns.ip("rule", "show")
    return {(rule["priority"], rule.get("fwmark")) for rule in there if "not" in rule}


def test_parameters_while_it_is_mandatory(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """Port, mark, priority, the interface's name, a node's address: nothing is readable, nothing of before stays."""
    records = (pool("10.65.0.0/16", "Always"),)
    more = {"CALICO_WIREGUARD_STRICT": "true", "AUTODETECT_POLL_INTERVAL": "1s"}
    told = told_steps(record_property, "mandatory encryption")
    with told as steps, encrypted_pair(tmp_path, records, **more) as pair:
        pair.enable()
        stream = pair.stream()
        stream.arrive(20)
        steps.skip(stream)
        spec: dict[str, Any] = {"wireguardEnabled": True}

        def change(what: str, wanted: set[tuple[int, Any]], **fields: Any) -> None:
            spec.update(fields)
            pair.store.put(felix_default(**spec))
            until(
                lambda: all(rules(pair, name) == wanted for name in pair.nodes), f"{what}: the rules", 60, pause_s=0.2
            )
            stream.arrive(30)
            assert stream.readable() == 0, what
            steps.ended(f"another {what}", stream)

        change("port", {(99, "0x200000")}, wireguardListeningPort=51999)
        until(lambda: all(51999 in capture.udp_to for capture in stream.captures), "packets go to the new port")
        change("priority", {(77, "0x200000")}, wireguardRoutingRulePriority=77)
        change("mark", {(77, "0x400000")}, nftablesMarkMask=0xFFFE0000)
        ns = pair.nodes["n1"].ns
        ns.do("addr", "del", "10.0.0.1/24", "dev", "eth0")
        ns.do("addr", "add", "10.0.0.11/24", "dev", "eth0")
        until(lambda: "10.0.0.11" in _endpoints(pair, "n2"), "n2 knows n1's new address", pause_s=0.2)
        stream.arrive(30)
        assert stream.readable() == 0, "a node's address"
        steps.ended("another address of a node", stream)
        before = dict(pair.devices)
        for name in pair.nodes:
            pair.make_device(name, f"{before[name]}x")
            pair.devices[name] += "x"
            pair.nodes[name].stop()
            pair.nodes[name].more["FELIX_WIREGUARDINTERFACENAME"] = pair.devices[name]
            pair.nodes[name].run().until_applied()
        pair.until_encrypted()
        stream.arrive(30)
        assert stream.readable() == 0, "names"
        steps.ended("another name, with a start", stream)
        assert not any(pair.nodes[name].ns.link(device) for name, device in before.items())


def _endpoints(pair: EncryptedPair, name: str) -> set[str]:
    device = pair.device(name)
    return {str(peer.endpoint.address) for peer in device.peers if peer.endpoint is not None}


def test_one_family_and_the_other(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """IPv6 is switched on while IPv4 stays plain, then both are on, then IPv6 is off: nothing is lost of either."""
    records = (pool("10.65.0.0/16", "Always"), pool("fd00:65::/48", "Always"))
    told = told_steps(record_property, "encryption, two families")
    with told as steps, encrypted_pair(tmp_path, records, **V6) as pair:
        until_all_reach_all(list(pair.pods.values()), 60)
        streams = {4: pair.stream(), 6: pair.stream(6, port=7778)}
        for stream in streams.values():
            stream.arrive(20)
            steps.ended("plain", stream)
        spec: dict[str, Any] = {}
        for number in (1, 2):
            pair.make_device(f"n{number}", f"{pair.devices[f'n{number}']}v6")
        for enabled in ({6}, {4, 6}, {4}):
            if enabled == {4, 6}:
                pair.make_devices()
            spec = {"wireguardEnabled": 4 in enabled, "wireguardEnabledV6": 6 in enabled}
            pair.store.put(felix_default(**spec))
            for family in (4, 6):
                wanted = family in enabled
                until(
                    lambda family=family, wanted=wanted: all(
                        bool(pair.routed(name, family)) == wanted for name in pair.nodes
                    ),
                    f"IPv{family} is {'encrypted' if wanted else 'plain'}",
                    60,
                    pause_s=0.2,
                )
            on = " and ".join(f"IPv{family}" for family in sorted(enabled))
            for family, stream in streams.items():
                stream.arrive(20)
                steps.ended(f"to {on} encrypted: IPv{family}", stream)
                before = stream.readable()
                stream.arrive(30)
                assert (stream.readable() == before) == (family in enabled), (family, enabled)
                steps.ended(f"{on} encrypted: IPv{family}", stream)
        assert [stream.stop() for stream in streams.values()] == [[0, 0], [0, 0]]


def test_a_cluster_of_ipv6_alone(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """Mandatory: nothing is readable from the first packet on."""
    alone = {**V6, "IP": "none", "CALICO_WIREGUARD_STRICT": "true", "CALICO_ROUTER_ID": "hash"}
    told = told_steps(record_property, "mandatory encryption")
    with told as steps, encrypted_pair(tmp_path, (pool("fd00:65::/48", "Always"),), **alone) as pair:
        for number in (1, 2):
            pair.make_device(f"n{number}", f"{pair.devices[f'n{number}']}v6")
        pair.store.put(felix_default(wireguardEnabledV6=True))
        stream = pair.stream(6)
        stream.arrive(30)
        assert stream.readable() == 0 and all(pair.routed(name, 6) for name in pair.nodes)
        steps.ended("IPv6 alone, until it is encrypted", stream)
        stream.arrive(30)
        steps.ended("IPv6 alone", stream)
        assert stream.readable() == 0
