"""A kernel's device with 1,000 peers of five networks each, kept by the agent's part: nothing is written when nothing
has changed, and a changed peer is one message.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any
from unittest.mock import patch

import pytest

from cni_calico.kernel.wireguard import device as door
from cni_calico.log import SILENT
from cni_calico.model.wireguard import WireguardEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption, DesiredPeer
from cni_calico.nodeagent.dataplane.parts.encryption import AfterRoutes, Encryption
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.conftest import SUMMARY
from tests.deadlines import soon
from tests.netns.namespaces import namespace

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.kernel("wireguard"), pytest.mark.timeout(900)]
NAME = "cct-many"
PEERS = 1000


def peer(number: int, key: int) -> DesiredPeer:
    networks = tuple(ip_network((0x0A410000 + (number * 5 + each) * 64, 26)) for each in range(5))
    place = WireguardEndpoint(ip_address(0x0A000000 + number + 1), 51820)
    return DesiredPeer(f"n{number}", key.to_bytes(32, "big"), place, networks)


def wanted() -> DesiredEncryption:
    peers = tuple(peer(number, number + 1) for number in range(PEERS))
    address = ip_address("10.96.0.1")
    return DesiredEncryption(
        4, NAME, mtu=1440, port=0xCA11, mark=0x200000, table=1, priority=99, address=address, peers=peers
    )


def run() -> dict[str, Any]:
    """In the namespace: what each step changed, how many messages set something, and its seconds of the processor."""
    sent: list[int] = []
    change_device = door.messages.set_device

    def counted(*arguments: Any) -> Any:
        requests = change_device(*arguments)
        sent.append(len(requests))
        return requests

    patch.object(door.messages, "set_device", counted).start()  # until this process ends
    clock = [100.0]
    part = Encryption(SILENT, lambda: clock[0])
    rest = AfterRoutes(part)
    found: dict[str, Any] = {}

    def step(name: str, desired: DesiredEncryption) -> None:
        sent.clear()
        begun, done = time.process_time(), Pass(unrouted=frozenset())
        for one in (part, rest):
            one.apply(Desired(encryption=(desired,)), FelixSettings(), soon(300), done, True)
        assert not done.failed, done.failed
        found[name] = (done.changed, sum(sent), time.process_time() - begun)

    everything = wanted()
    step("start", everything)
    clock[0] += 11  # nobody answers: the routes come all the same
    step("routes", everything)
    step("same", everything)
    step("one", replace(everything, peers=(*everything.peers[:-1], peer(PEERS - 1, PEERS + 1))))
    begun = time.process_time()
    device = door.read_device(NAME, soon(300))
    found["read"] = time.process_time() - begun
    assert device is not None
    found["peers"], found["networks"] = len(device.peers), sum(len(one.allowed) for one in device.peers)
    return found


def test_a_thousand_peers(record_property: pytest.RecordProperty) -> None:
    with namespace("many") as ns:
        found = ns.call(run, timeout_s=600)
    assert (found["peers"], found["networks"]) == (PEERS, PEERS * 5)
    assert found["same"][:2] == ([], 0)
    assert found["one"][0] == [f"changed 2 peers of {NAME}"] and found["one"][1] == 1
    steps = [f"{name} {found[name][1]} messages, {found[name][2]:.2f} s" for name in ("start", "routes", "same", "one")]
    told = (
        f"Linux {os.uname().release}, {PEERS} peers, of the processor: {'; '.join(steps)}; read {found['read']:.2f} s"
    )
    record_property(SUMMARY, told)
