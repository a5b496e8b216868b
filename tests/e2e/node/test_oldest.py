"""A whole calico-node releases what the oldest releases of Calico left of this host's containers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.e2e import host
from tests.e2e.cnitool import Cnitool
from tests.e2e.forks import forks_in
from tests.e2e.host import EtcdNode
from tests.e2e.oldest import grow_old
from tests.netns.agents import EtcdStore
from tests.netns.nodes import Node
from tests.netns.startups import add_card

pytestmark = [pytest.mark.netns, pytest.mark.etcd]

GONE, LIVES = "c0ffee" + 58 * "1", "ab" * 32
# nobody else's on this machine: an address that any network namespace has is kept
POOL = ("10.213.77.0/24", 26)


@dataclass
class Sighted(Node):
    """Its processes see the results that libcni keeps, which are the test's own, and no process but themselves: the
    machine's, of other tests or of its owner, may be closed to them, and then nothing is released.
    """

    tool: Cnitool | None = None

    def _program(self, name: str, module: str) -> list[str]:
        assert self.tool is not None
        unshare, *words = self.tool.in_host
        alone = [unshare, "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*alone, *words, *super()._program(name, module)[2:]]


@pytest.fixture
def sighted_node(etcd_node: EtcdNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sighted]:
    """Not yet started."""
    add_card(etcd_node.host, "eth0", "10.0.0.1/24")
    [url] = etcd_node.datastore.etcd_endpoints
    with forks_in(etcd_node.host) as forks:
        etcd_node.forks = forks
        monkeypatch.setattr(host, "POOLS", {"pool": POOL})
        etcd_node.put({path: None for path in etcd_node.dump() if "/ippools/" in path})
        etcd_node.apply_pools()
        root = etcd_node.root / "agent"
        root.mkdir()
        made = Sighted(etcd_node.host, etcd_node.nodename, root, EtcdStore(url, forks), tool=Cnitool(etcd_node))
        made.more = {"CALICO_IPV4POOL_CIDR": POOL[0]}
        try:
            yield made
        finally:
            if made.process is not None:
                made.stop(signal.SIGKILL)  # unshare lets no other signal through


def test_the_address_of_a_container_that_is_gone(etcd_node: EtcdNode, sighted_node: Sighted) -> None:
    """After the cluster's grace period; one that libcni still knows keeps its own."""
    handles = {GONE: f"calnet.{GONE}", LIVES: LIVES}
    for container, handle in handles.items():
        assert etcd_node.call("ADD", container, "/n", plugin="calico-ipam").ok
        grow_old(etcd_node, container, handle)
    assert set(etcd_node.taken().values()) == set(handles.values())
    results = Path(etcd_node.root / "cache" / "results")
    results.mkdir(parents=True)
    (results / f"calnet-{LIVES}-eth0").write_text("{}")
    etcd_node.apply("KubeControllersConfiguration", "default", {"controllers": {"node": {"leakGracePeriod": "1s"}}})
    sighted_node.run()
    until(lambda: set(etcd_node.taken().values()) == {LIVES}, "the one is released", pause_s=0.2)
    said = until(lambda: [line for line in sighted_node.log().splitlines() if "released " in line], "it says so", 20)
    assert len(said) == 1 and handles[GONE] in said[0]
    assert "no runtime of this host knows its container" in said[0]
    assert len(etcd_node.handles()) == 1
