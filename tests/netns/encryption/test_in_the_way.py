"""What is in the way of encryption on a node: interfaces and a port of others, and addresses that are not its own.
It is said, nobody encrypts for the node meanwhile, and it is in force when the way is free.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from cni_calico.kernel.wireguard.device import change_device, make_private_key
from cni_calico.model.wireguard import WireguardChange, with_published_address
from cni_calico.nodeagent.status.file import since_boot, why_not_ready
from tests.deadlines import soon, until
from tests.kernels.features import has
from tests.netns.encrypted import EncryptedPair, Stream, encrypted_pair, felix_default, opened
from tests.unit.nodeagent.fabric import pool

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(has("wireguard"), reason="devices outside of the kernel, which only a test can make"),
]


def says(pair: EncryptedPair, name: str, what: str) -> None:
    status = pair.nodes[name].status
    until(lambda: what in why_not_ready(status(), since_boot()), f"{name} says that {what}", 60)
    until(lambda: name not in pair.told_keys(), f"{name} tells no key", 60)


def in_force(pair: EncryptedPair, stream: Stream) -> None:
    until(lambda: len(pair.told_keys()) == 2, "both tell a key", 60)
    pair.until_encrypted()
    stream.arrive(5)
    before = stream.readable()
    stream.arrive(20)
    assert stream.readable() == before


def test_what_is_in_the_way(tmp_path: Path) -> None:
    """Pods talk all the time, in plain text while they must."""
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),)) as pair:
        stream = pair.stream()
        node, device = pair.nodes["n2"], pair.devices["n2"]
        node.ns.do("link", "add", device, "type", "bridge")
        pair.enable_on("n1")
        says(pair, "n2", "of kind bridge and not WireGuard's; it is left as it is")
        assert node.ns.link(device) is not None
        stream.arrive(20)
        node.ns.do("link", "del", device)

        pair.make_device("n2", device)
        foreign = WireguardChange(private_key=make_private_key(), port=7788)
        node.stop()  # or it would be the first to give it a key
        node.ns.call(change_device, device, foreign, soon())
        node.run()
        says(pair, "n2", "which nobody here gave it; it is left as it is")
        assert pair.device("n2").port == 7788
        stream.arrive(20)
        node.ns.do("link", "del", device)
        pair.remake_device("n2")
        in_force(pair, stream)

        with opened(pair.nodes["n1"].ns, socket.AF_INET, socket.SOCK_DGRAM) as holder:
            holder.bind(("0.0.0.0", 51999))
            pair.store.put(felix_default(wireguardEnabled=True, wireguardListeningPort=51999))
            says(pair, "n1", "UDP port 51999 is in use by ")
            stream.arrive(20)
        pair.remake_device("n1")
        in_force(pair, stream)

        for address in ("198.51.100.9", pair.pods["n2"].addresses[0]):
            _say_address(pair, "n1", address)
            until(lambda address=address: _address(pair, "n1") not in ("", address), "n1 has one of its own again", 60)
        in_force(pair, stream)


def _say_address(pair: EncryptedPair, name: str, address: str) -> None:
    def said(node: Any) -> Any:
        return with_published_address(node, 4, ip_address(address))

    pair.change_node(name, said)


def _address(pair: EncryptedPair, name: str) -> str:
    """Which the Node says that its device has."""
    return pair.node(name).get("spec", {}).get("wireguard", {}).get("interfaceIPv4Address", "")
