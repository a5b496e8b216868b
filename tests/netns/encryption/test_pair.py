"""Two nodes, their pods sending 100 packets a second each way: what is lost, and what can be read on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.model.access import DatastoreConfig
from tests.deadlines import until
from tests.e2e import records
from tests.netns.encrypted import EncryptedPair, encrypted_pair
from tests.netns.nodes import until_all_reach_all
from tests.netns.steps import Steps, told_steps
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.stock]


@pytest.fixture
def encrypted_nodes(tmp_path: Path) -> Iterator[EncryptedPair]:
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),)) as made:
        yield made


def test_enabled_and_disabled_while_pods_talk(
    encrypted_nodes: EncryptedPair, record_property: pytest.RecordProperty
) -> None:
    with told_steps(record_property, "encryption") as steps:
        _enabled_and_disabled(encrypted_nodes, steps)


def _enabled_and_disabled(encrypted_nodes: EncryptedPair, steps: Steps) -> None:
    until_all_reach_all(list(encrypted_nodes.pods.values()), 60)
    stream = encrypted_nodes.stream()
    stream.arrive(20)
    assert stream.readable() > 0  # the capture sees what is plain
    steps.ended("plain", stream)
    encrypted_nodes.enable()
    encrypted_nodes.until_encrypted()
    steps.ended("switched on, until each has its route", stream)
    stream.arrive(20)
    plain = stream.readable()
    stream.arrive(100)
    assert stream.readable() == plain
    assert len(encrypted_nodes.told_keys()) == 2
    far = "10.0.0.2"  # n2 itself, which answers with this address, and the other way round
    until(lambda: encrypted_nodes.pings("n1", far, stream.token), "a pod reaches the other node", pause_s=0.2)
    assert stream.readable() == plain
    steps.ended("encrypted", stream)
    before = encrypted_nodes.told_keys()
    encrypted_nodes.rotate("n1")
    until(lambda: encrypted_nodes.told_keys()["n1"] != before["n1"], "n1 has another key", pause_s=0.2)
    until(
        lambda: encrypted_nodes.shaken("n2", encrypted_nodes.told_keys()["n1"]), "n2 has a session with it", pause_s=0.2
    )
    stream.arrive(20)
    assert stream.readable() == plain and encrypted_nodes.told_keys()["n2"] == before["n2"]
    steps.ended("a new key", stream)
    encrypted_nodes.disable()
    until(lambda: not encrypted_nodes.told_keys(), "no key is told any more", pause_s=0.2)
    for name in encrypted_nodes.nodes:
        until(lambda name=name: not encrypted_nodes.rules(name), "the rule is gone", 120, pause_s=0.2)
    stream.arrive(20)
    steps.ended("switched off", stream)
    assert stream.stop() == [0, 0]
    nothing_is_left(encrypted_nodes)


def nothing_is_left(pair: EncryptedPair) -> None:
    """Neither on the nodes nor in the records."""
    for name, node in pair.nodes.items():
        until(lambda node=node, name=name: node.ns.link(pair.devices[name]) is None, "the device is gone", 120)
        assert {rule["priority"] for rule in node.ns.ip("rule", "show")} == {0, 32766, 32767}
        assert not [route for route in node.ns.ip("route", "show", "table", "all") if route.get("table") in ("1", "2")]
        until(lambda node=node: "calico-wireguard" not in node.ns.run("nft", "list", "tables").stdout, "its table is")
        assert "calico-encryption" not in node.ns.run("nft", "list", "tables").stdout

    def stored() -> str:
        return json.dumps(records.dump(DatastoreConfig("local", path=str(pair.store.path))))

    for trace in ("wireguard-tunnel-addr", "wireguardTunnelAddress", "wireguardPublicKey", "interfaceIPv4Address"):
        until(lambda trace=trace: trace not in stored(), f"no record has a {trace}", 60, pause_s=0.2)
