"""A path that is smaller than the nodes' own interfaces: packets of WireGuard are too large for a router on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.encrypted import EncryptedPair, encrypted_pair
from tests.netns.encryption.test_proof import check
from tests.netns.encryption.test_sizes import BYTES, transferred
from tests.netns.namespaces import Namespace
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(600)]
SMALL = 1400


def router_between(pair: EncryptedPair) -> Namespace:
    """What one node sends to the other goes over it: in by eth0, out by eth1, which takes SMALL bytes."""
    router = pair.lab.namespace("router")
    for device in ("eth0", "eth1"):
        pair.lab.plug(router, device, "0")
    router.do("addr", "add", "10.0.0.254/24", "dev", "eth0")
    for name in ("all", "eth0", "eth1"):
        router.set_sysctl(f"ipv4/conf/{name}/rp_filter", "0")
        router.set_sysctl(f"ipv4/conf/{name}/send_redirects", "0")
    router.set_sysctl("ipv4/ip_forward", "1")
    router.do("link", "set", "eth1", "mtu", str(SMALL))
    for number in (1, 2):
        router.do("route", "add", f"10.0.0.{number}/32", "dev", "eth1", "src", "10.0.0.254")
    for number, node in enumerate(pair.nodes.values(), 1):
        node.ns.do("route", "add", f"10.0.0.{3 - number}/32", "via", "10.0.0.254", "dev", "eth0")
    return router


def test_a_path_that_is_smaller_than_the_interfaces(tmp_path: Path) -> None:
    """TCP arrives, in pieces. Where the router only drops what is too large, the check says what passes."""
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),)) as pair:
        pair.enable()
        pair.until_encrypted()
        stream = pair.stream()
        stream.arrive(20)
        router = router_between(pair)
        before = stream.readable()
        assert transferred(pair) == BYTES
        stream.arrive(20)
        assert stream.readable() == before

        router.run("nft", "add table ip small; add chain ip small f { type filter hook forward priority 0; }")
        router.run("nft", "add rule ip small f ip length > 1300 drop")
        outcome, said = check(pair, "n1")["IPv4 to host n2"]
        assert outcome == "failed" and "packets of 1440 bytes are not" in said and "those of 1230 are" in said
        until(lambda: pair.pods["n1"].can_ping(pair.pods["n2"]), "small packets pass", 30)
