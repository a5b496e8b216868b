"""Where encryption is mandatory: nodes that join, restart, leave the records, or start again, and records that move."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.status.file import since_boot, why_not_ready
from tests.deadlines import until
from tests.kernels.features import has
from tests.netns.encrypted import EncryptedPair, Stream, encrypted_pair, opened
from tests.netns.namespaces import Namespace
from tests.netns.nodes import Node
from tests.netns.steps import Steps, told_steps
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.stock, pytest.mark.slow, pytest.mark.timeout(900)]
STRICT = {"CALICO_WIREGUARD_STRICT": "true"}


@pytest.fixture(scope="module")
def mandatory_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncryptedPair]:
    """Started once; what one test leaves, a third node, the next one has."""
    with encrypted_pair(tmp_path_factory.mktemp("nodes"), (pool("10.65.0.0/16", "Always"),), **STRICT) as made:
        made.enable()
        yield made


def join(pair: EncryptedPair, name: str) -> None:
    pair.start(name)
    pair.make_devices(name)
    pair.nodes[name].until_applied()
    pair.pods[name] = pair.add_pod(name)


def goes_on(stream: Stream, what: str) -> None:
    stream.arrive(30)
    assert stream.readable() == 0, what


def test_a_node_that_cannot_encrypt(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """It is not ready and says why; its pods reach one another, and no other node's."""
    told = told_steps(record_property, "mandatory encryption")
    with told as steps, encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),), **STRICT) as pair:
        foreign = has("wireguard")  # else it has none, without the program outside of the kernel
        if foreign:
            pair.nodes["n2"].ns.do("link", "add", pair.devices["n2"], "type", "bridge")
        pair.enable_on("n1")
        stream = pair.stream()
        reason = "of kind bridge" if foreign else "modprobe wireguard"
        until(lambda: reason in _why(pair.nodes["n2"]), "n2 says why it is not ready", pause_s=0.2)
        beside = pair.add_pod("n2", "b")
        until(lambda: pair.pods["n2"].can_ping(beside), "pods of one node reach one another", pause_s=0.2)
        sent = stream.sent[0]
        until(lambda: stream.sent[0] > sent + 50, "more packets are sent")
        assert stream.readable() == 0 and not any(stream.arrived) and "n2" not in pair.told_keys()
        steps.ended("a node without WireGuard", stream)


def _why(node: Node) -> str:
    return why_not_ready(node.status(), since_boot())


def test_nodes_come_and_go(mandatory_nodes: EncryptedPair, record_property: pytest.RecordProperty) -> None:
    """Three nodes, a stream from the first to each other one: what concerns one does not stop the other's."""
    with told_steps(record_property, "mandatory encryption, three nodes") as steps:
        _come_and_go(mandatory_nodes, steps)


def _come_and_go(pair: EncryptedPair, steps: Steps) -> None:
    second = pair.stream()
    second.arrive(20)
    steps.skip(second)
    join(pair, "n3")
    third = pair.stream(of=("n1", "n3"), port=7778)
    for stream in (second, third):
        goes_on(stream, "a node joins")
    steps.ended("a node joins: the others", second)
    steps.ended("a node joins: its own", third)
    _rotate_all(pair, second, third)
    steps.ended("all have new keys", second, third)
    _stop_and_upgrade(pair, second, third)
    steps.ended("agent stopped, another starts", second, third)
    _same_key(pair, second, third)
    steps.ended("key of a third node: the two", second, third)
    _forget_node(pair, second, third)
    steps.ended("a Node deleted: the others", second)
    steps.ended("a Node deleted: its own", third)
    third.stop()
    third = _reboot(pair, second)
    steps.ended("a node starts again: the others", second)
    steps.ended("a node starts again: its own", third)


def _rotate_all(pair: EncryptedPair, second: Stream, third: Stream) -> None:
    """One after the other: nothing is lost."""
    lost = [second.outstanding(), third.outstanding()]
    for name in pair.nodes:
        before = pair.told_keys()[name]
        pair.rotate(name)
        until(lambda name=name, before=before: pair.told_keys()[name] != before, f"{name} has another key", pause_s=0.2)
        for other in pair.nodes.keys() - {name}:
            until(partial(pair.shaken, other, pair.told_keys()[name]), f"{other} has a session with it", pause_s=0.2)
    for stream in (second, third):
        goes_on(stream, "all have new keys")
    assert [second.outstanding(), third.outstanding()] == lost


def _stop_and_upgrade(pair: EncryptedPair, second: Stream, third: Stream) -> None:
    """An agent that is stopped, and another that starts in its place: sessions go on meanwhile, nothing is lost."""
    lost = [second.outstanding(), third.outstanding()]
    pair.nodes["n3"].stop()
    for stream in (second, third):
        goes_on(stream, "no agent runs on a node")
    pair.nodes["n3"].run().until_applied()
    for stream in (second, third):
        goes_on(stream, "another agent runs there")
    assert [second.outstanding(), third.outstanding()] == lost


def _same_key(pair: EncryptedPair, second: Stream, third: Stream) -> None:
    """Two nodes with one key: neither is a peer, until the one whose key it is not says its own again."""
    copied = pair.told_keys()["n3"]
    own = pair.told_keys()["n2"]
    pair.say_key("n2", copied)
    until(lambda: pair.told_keys()["n2"] == own, "n2 says its own key again", pause_s=0.2)
    for stream in (second, third):
        goes_on(stream, "a third node's key")


def _forget_node(pair: EncryptedPair, second: Stream, third: Stream) -> None:
    """A Node that is deleted while its agent runs: nothing goes to it or from it, the other goes on."""
    pair.store.remove(ResourceKey("Node", "n3"))
    until(lambda: len(pair.routed("n1")) == 1 or "n3" not in pair.told_keys(), "n3 is no peer", pause_s=0.2)
    goes_on(second, "a Node is deleted")
    node = pair.nodes["n3"]
    node.stop(signal.SIGTERM)
    node.run().until_applied()
    for stream in (second, third):
        goes_on(stream, "its agent starts again")


def _reboot(pair: EncryptedPair, second: Stream) -> Stream:
    """The namespace with all that is in it is new, files stay but those below /run: pods cannot start first. Returns
    the stream to its pod.
    """
    node = pair.nodes["n3"]
    node.stop(signal.SIGKILL)
    node.ns.do("link", "del", "eth0")
    shutil.rmtree(node.root / "run")
    ns = pair.lab.namespace("n3again")
    pair.lab.plug(ns, "eth0", "0", "10.0.0.3/24", "fd00:0::3/64")
    again = pair.nodes["n3"] = replace(node, ns=ns)
    pair.lab.stack.callback(again.end)
    with pytest.raises(RuntimeError, match="encryption between nodes is mandatory"):
        pair.add_pod("n3", "first")
    goes_on(second, "another node is down")
    pair.devices["n3"] += "b"  # the other's program still has its socket
    again.more["FELIX_WIREGUARDINTERFACENAME"] = pair.devices["n3"]
    pair.make_devices("n3")
    again.run()
    again.until_applied()
    pair.pods["n3"] = pair.add_pod("n3", "b")
    third = pair.stream(of=("n1", "n3"), port=7779)
    for stream in (second, third):
        goes_on(stream, "a node has started again")
    return third


def test_pools_and_blocks_that_move(mandatory_nodes: EncryptedPair, record_property: pytest.RecordProperty) -> None:
    """A pool that is added, and blocks that go from one node to the other: plain at no time."""
    with told_steps(record_property, "mandatory encryption") as steps:
        _pools_and_blocks(mandatory_nodes, steps)


def _pools_and_blocks(pair: EncryptedPair, steps: Steps) -> None:
    stream = pair.stream()
    stream.arrive(20)
    steps.skip(stream)
    pair.store.put(pool("10.66.0.0/16", "Always"))
    ipam = {"type": "calico-ipam", "assign_ipv4": "true", "ipv4_pools": ["10.66.0.0/16"]}
    pods = pair.add_pod("n1", "b", ipam=ipam), pair.add_pod("n2", "b", ipam=ipam)
    assert all(pod.addresses[0].startswith("10.66.") for pod in pods)
    added = pair.stream_between(pods, port=7778)
    added.arrive(20)
    steps.ended("a pool is added: its pods", added)
    for holder in ("n2", "nobody", "n2", "n1", "n2"):
        pair.store.put_block("10.65.77.0/26", holder)
        _send(pair.pods["n1"].ns, stream.token, "10.65.77.9")
        if holder == "n2":
            until(lambda: "10.65.77.0/26" in pair.routed("n1"), "n1 sends it encrypted", pause_s=0.2)
        else:
            until(lambda: "10.65.77.0/26" not in pair.routed("n1"), f"n1 knows that it is of {holder}", pause_s=0.2)
        _send(pair.pods["n1"].ns, stream.token, "10.65.77.9")
    stream.arrive(20)
    assert stream.readable() == added.readable() == 0
    steps.ended("pool added, block moved: the others", stream)


def _send(ns: Namespace, token: bytes, address: str) -> None:
    with opened(ns, 2, 2) as one:
        for _ in range(20):
            try:
                one.sendto(token, (address, 7777))
            except OSError:
                pass  # refused by the host
