"""The datastore is away while encryption is mandatory: sessions are renewed, what is broken by hand is repaired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from cni_calico.directories import ENCRYPTION_GUARD
from tests.contract.etcd_process import Member
from tests.deadlines import until
from tests.e2e.forks import forks_in
from tests.netns.agents import EtcdStore
from tests.netns.bird.cluster import Lab
from tests.netns.encrypted import EncryptedPair, Stream, encrypted_pair
from tests.netns.namespaces import Namespace
from tests.netns.steps import Steps, told_steps
from tests.unit.nodeagent.fabric import pool

pytestmark = [
    *(pytest.mark.netns, pytest.mark.stock, pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(1200)),
    pytest.mark.once("tests/netns/encryption/test_mandatory.py"),  # repairs, and what goes on without an agent
]


@contextmanager
def pair_on_etcd(tmp_path: Path) -> Iterator[tuple[EncryptedPair, Member]]:
    """Encrypted and mandatory, on an etcd that may be stopped."""
    members: list[Member] = []

    def make_store(lab: Lab) -> EtcdStore:
        ns = lab.namespace("etcd")
        lab.plug(ns, "eth0", "0", "10.0.0.254/24")
        prefix = ("nsenter", f"--net={ns.path}")
        etcd = Member("etcd", "http://10.0.0.254:2379", "http://127.0.0.1:2380", tmp_path, prefix=prefix)
        etcd.start(f"etcd={etcd.peer_url}")
        lab.stack.callback(etcd.stop)
        etcd.wait_serving()
        members.append(etcd)
        return EtcdStore(etcd.client_url, lab.stack.enter_context(forks_in(ns)))

    records = (pool("10.65.0.0/16", "Always"),)
    environ = {"CALICO_WIREGUARD_STRICT": "true", "FELIX_ROUTEREFRESHINTERVAL": "10"}  # repairs may be that late
    with encrypted_pair(tmp_path, records, make_store, **environ) as pair:
        pair.enable()
        yield pair, members[0]


def test_the_datastore_is_away(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """Until both have had another handshake, which is some two minutes."""
    told = told_steps(record_property, "mandatory encryption")
    with told as steps, pair_on_etcd(tmp_path) as (pair, etcd):
        stream = pair.stream()
        stream.arrive(20)
        steps.skip(stream)
        etcd.stop()
        shaken = {name: pair.handshake(name) for name in pair.nodes}
        ns = pair.nodes["n1"].ns
        ns.do("rule", "del", "priority", "99")
        until(partial(pair.rules, "n1"), "the rule is made again", pause_s=0.1)
        ns.do("route", "flush", "table", "1")
        until(partial(pair.routed, "n1"), "the routes are", pause_s=0.1)
        ns.run("nft", "delete", "table", "inet", "calico-encryption")
        listed = ("nft", "list", "table", "inet", "calico-encryption")
        until(lambda: ns.run(*listed, check=False).returncode == 0, "the guard is", pause_s=0.1)
        stream.arrive(20)
        steps.ended("etcd away; rule, routes, guard deleted", stream)
        stream.pause_s = 0.1  # for two minutes: what a machine spends then is packets
        until(
            lambda: all(pair.handshake(name) > before for name, before in shaken.items()),
            "both have other handshakes",
            600,
            pause_s=1,
        )
        stream.pause_s = 0.01
        stream.arrive(20)
        assert stream.readable() == 0
        steps.ended("until sessions are renewed", stream)
        _started_without(pair, etcd, stream, steps)


def _started_without(pair: EncryptedPair, etcd: Member, stream: Stream, steps: Steps) -> None:
    """An agent that starts while nothing can be read, on a host whose table has gone, as after a reboot: the guard is
    as it was last, and no pod starts. A pool that came meanwhile is guarded as soon as it is read.
    """
    node = pair.nodes["n1"]
    node.stop()
    etcd.start(f"etcd={etcd.peer_url}")
    etcd.wait_serving()
    pair.store.put(pool("10.66.0.0/16", "Always"))
    etcd.stop()
    node.ns.run("nft", "delete", "table", "inet", "calico-encryption")
    Path(f"{node.root}/run/{ENCRYPTION_GUARD}").unlink()
    node.run()
    until(lambda: "10.65." in _guard(node.ns), "the last guard stands", pause_s=0.1)
    assert "10.66." not in _guard(node.ns)
    node.ns.do("rule", "del", "priority", "99")  # which is not made again before there are records
    with pytest.raises(RuntimeError, match="encryption between nodes is mandatory"):
        pair.add_pod("n1", "early")
    sent = stream.sent[0]
    until(lambda: stream.sent[0] > sent + 50, "more packets are sent")
    assert stream.readable() == 0 and not pair.rules("n1")
    steps.ended("an agent starts without etcd, without its table and rule", stream)
    etcd.start(f"etcd={etcd.peer_url}")
    etcd.wait_serving()
    until(lambda: "10.66." in _guard(node.ns), "the pool of meanwhile is guarded", 120, pause_s=0.2)
    node.until_applied()
    stream.arrive(20)
    assert stream.readable() == 0
    steps.ended("and etcd is back", stream)


def _guard(ns: Namespace) -> str:
    """Its addresses; empty while it is not there."""
    return ns.run("nft", "list", "table", "inet", "calico-encryption", check=False).stdout
