"""Where encryption is mandatory: nothing of a pod's is readable between the nodes, whatever is broken or taken away."""

from __future__ import annotations

import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cni_calico.nodeagent.status.file import since_boot, why_not_ready
from tests.deadlines import until
from tests.kernels.features import has
from tests.netns.encrypted import EncryptedPair, Stream, encrypted_pair, felix_default
from tests.netns.namespaces import Namespace
from tests.netns.steps import Steps, told_steps
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.stock]


@pytest.fixture
def mandatory_pair(tmp_path: Path) -> Iterator[EncryptedPair]:
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),), CALICO_WIREGUARD_STRICT="true") as made:
        yield made


def delete_device(pair: EncryptedPair) -> None:
    pair.nodes["n1"].ns.do("link", "del", pair.devices["n1"])


def delete_rule(pair: EncryptedPair) -> None:
    pair.nodes["n1"].ns.do("rule", "del", "priority", "99")


def flush_table(pair: EncryptedPair) -> None:
    pair.nodes["n1"].ns.do("route", "flush", "table", "1")


def kill_agent(pair: EncryptedPair) -> None:
    pair.nodes["n1"].stop(signal.SIGKILL)


def delete_guard(pair: EncryptedPair) -> None:
    pair.nodes["n1"].ns.run("nft", "delete", "table", "inet", "calico-encryption")


def has_guard(ns: Namespace) -> bool:
    return ns.run("nft", "list", "table", "inet", "calico-encryption", check=False).returncode == 0


def empty_key(pair: EncryptedPair) -> None:
    pair.say_key("n2", "")


def garbage_key(pair: EncryptedPair) -> None:
    pair.say_key("n2", "no key")


def anothers_key(pair: EncryptedPair) -> None:
    pair.say_key("n2", pair.told_keys()["n1"])


FAULTS: list[Callable[[EncryptedPair], None]] = [
    delete_rule,
    flush_table,
    empty_key,
    garbage_key,
    anothers_key,
    delete_guard,
]


def test_nothing_is_readable_whatever_happens(
    mandatory_pair: EncryptedPair, record_property: pytest.RecordProperty
) -> None:
    """One fault after the other, each repaired by the agents, then what only a new start repairs."""
    with told_steps(record_property, "mandatory encryption") as steps:
        _whatever_happens(mandatory_pair, steps)


def _whatever_happens(pair: EncryptedPair, steps: Steps) -> None:
    stream = pair.stream()
    assert all(has_guard(node.ns) for node in pair.nodes.values())
    until(lambda: stream.sent[0] > 20, "packets are sent")
    assert stream.readable() == 0 and not stream.arrived[0]  # without a device they are dropped
    steps.ended("not enabled", stream)
    pair.enable()
    stream.arrive(20)
    steps.ended("switched on", stream)
    for fault in FAULTS:
        fault(pair)
        if fault is delete_guard:
            until(lambda: has_guard(pair.nodes["n1"].ns), "the guard is made again", pause_s=0.2)
        until(lambda: len(pair.told_keys()) == 2 and pair.rules("n1"), f"{fault.__name__} is repaired", pause_s=0.2)
        stream.arrive(20)
        assert stream.readable() == 0, fault.__name__
        steps.ended(fault.__name__.replace("_", " "), stream)
    _device_goes_while_the_agent_lives(pair, stream)
    steps.ended("interface deleted while the agent runs", stream)
    kill_agent(pair)
    stream.arrive(20)
    assert stream.readable() == 0
    steps.ended("agent killed", stream)
    delete_device(pair)
    sent = stream.sent[0]
    until(lambda: stream.sent[0] > sent + 50, "more packets are sent")
    assert stream.readable() == 0
    steps.ended("and its interface deleted", stream)
    _injected(pair, stream)
    steps.skip(stream)
    pair.remake_device("n1")
    pair.nodes["n1"].run().until_applied()
    stream.arrive(20)
    assert stream.readable() == 0
    steps.ended("its next start", stream)


def _device_goes_while_the_agent_lives(pair: EncryptedPair, stream: Stream) -> None:
    """It makes another, with another key; where it cannot, it says so until there is one."""
    before = pair.told_keys()["n1"]
    delete_device(pair)
    if not has("wireguard"):
        until(lambda: "n1" not in pair.told_keys(), "n1 tells no key")
        said = "IPv4 encryption is not in force"
        until(lambda: said in why_not_ready(pair.nodes["n1"].status(), since_boot()), "n1 says that it is not in force")
        pair.remake_device("n1")
    until(lambda: pair.told_keys().get("n1", before) != before, "n1 has another key", 60)
    stream.arrive(20)
    assert stream.readable() == 0


def _injected(pair: EncryptedPair, stream: Stream) -> None:
    """Packets with a pod's source, from the wire, as they are, in VXLAN and in IPIP: none is delivered."""
    target, source = (pair.pods[name].addresses[0] for name in ("n2", "n1"))
    ns = pair.nodes["n2"].ns
    sender = pair.lab.namespace("stranger")
    pair.lab.plug(sender, "eth0", "0", "10.0.0.9/24")
    mac = ns.ip("link", "show", "dev", "eth0")[0]["address"]
    inner = udp(source, target, 7777, stream.token + struct.pack(">I", 1 << 30))
    inside = ethernet(ns.ip("link", "show", "dev", "vxlan.calico")[0]["address"], inner)
    vxlan = udp("10.0.0.1", "10.0.0.2", 4789, struct.pack(">II", 8 << 24, 4096 << 8) + inside)
    ipip = packet("10.0.0.1", "10.0.0.2", 4, inner)
    # those in VXLAN, which a node may send, are counted behind it; what other filters drop before, is not
    for counted, *others in ((inner,), (vxlan,), (inner, ipip)):
        frames = [ethernet(mac, one) for one in (*others, counted)] * 20
        before = dropped(ns)
        # the wire may not carry the first ones yet
        until(
            lambda frames=frames, before=before: sender.call(inject, frames) and dropped(ns) >= before + 20,
            "the guard has counted them",
            pause_s=0.2,
        )
    assert 1 << 30 not in stream.arrived[0] and 1 << 30 not in stream.arrived[1]
    stream.forget_readable()  # these were


def udp(source: str, target: str, port: int, payload: bytes) -> bytes:
    return packet(source, target, 17, struct.pack(">HHHH", 7777, port, 8 + len(payload), 0) + payload)


def packet(source: str, target: str, protocol: int, payload: bytes) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0)
    head += socket.inet_aton(source) + socket.inet_aton(target)
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return head[:10] + struct.pack(">H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + head[12:] + payload


def ethernet(mac: str, payload: bytes) -> bytes:
    return bytes.fromhex(mac.replace(":", "") + "020000000009") + b"\x08\0" + payload


def inject(frames: list[bytes]) -> int:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind(("eth0", 0))
        return sum(wire.send(one) == len(one) for one in frames)


def dropped(ns: Namespace) -> int:
    listed = ns.run("nft", "list", "chain", "inet", "calico-encryption", "arriving").stdout
    return sum(int(line.split("packets ")[1].split()[0]) for line in listed.splitlines() if "packets " in line)


def test_it_goes_when_it_is_read_that_it_need_not_be(tmp_path: Path) -> None:
    """By the annotation; what cannot be understood counts as yes. Pods wait after a reboot until the guard stands."""
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),)) as pair:
        ns, node = pair.nodes["n1"].ns, pair.nodes["n1"]
        assert not has_guard(ns)
        pair.store.put(felix_default(annotations={"cni-calico.io/wireguard-strict": "perhaps"}))
        until(lambda: has_guard(ns), "the guard stands", pause_s=0.2)
        for warning in (
            "wireguard-strict is 'perhaps', which counts as true",
            "are dropped: encryption is mandatory, and it is not enabled for IPv4",
        ):
            until(lambda warning=warning: warning in node.log(), f"the log says that {warning}")
        required, standing = node.root / "lib" / "encryption-required", node.root / "run" / "encryption-guard"
        until(standing.exists, "the plugin is told")
        standing.unlink()  # as a reboot does
        with pytest.raises(RuntimeError, match="encryption between nodes is mandatory"):
            node.cni("ADD", pair.pods["n1"])
        pair.store.put(felix_default(annotations={"cni-calico.io/wireguard-strict": "false"}))
        until(lambda: not has_guard(ns) and not required.exists(), "the guard is gone", pause_s=0.2)
