"""DELs recorded while the datastore was away are carried out by the agent alone: no server runs and no call comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from cni_calico.model.access import DatastoreConfig
from tests.contract.etcd_process import Member
from tests.deadlines import until
from tests.e2e.forks import Forks, forks_in
from tests.e2e.host import etcd_in, taken_in
from tests.e2e.records import dump
from tests.netns.agents import EtcdStore
from tests.netns.namespaces import namespace
from tests.netns.nodes import Node, Pod
from tests.netns.startups import add_card

pytestmark = [pytest.mark.netns, pytest.mark.etcd]


class Lab:
    """A node on an etcd of its own, in one namespace; the agent runs, the CNI server does not."""

    def __init__(self, node: Node, etcd: Member, forks: Forks, stack: ExitStack) -> None:
        self.node = node
        self.etcd = etcd
        self._forks = forks
        self._stack = stack

    def pod(self, name: str) -> Pod:
        return Pod(self._stack.enter_context(namespace(name)), f"owed-{name}")

    def start_etcd(self) -> None:
        self.etcd.start(f"{self.etcd.name}={self.etcd.peer_url}", "existing")
        self.etcd.wait_serving()

    def held(self) -> set[str]:
        """Handles of pods that hold an address."""
        config = DatastoreConfig("etcdv3", etcd_endpoints=(self.etcd.client_url,))
        return {handle for handle in taken_in(self._forks.call(dump, config)).values() if "tunnel" not in handle}

    def carried_out(self) -> int:
        """How often anybody said that it has released what was owed."""
        told = self.node.log()
        calls = self.node.root / "cni.log"
        return (told + (calls.read_text() if calls.exists() else "")).count("as recorded by an earlier DEL")


@pytest.fixture
def owed_lab(tmp_path: Path, bundle: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        ns = stack.enter_context(namespace("owed"))
        add_card(ns, "eth0", "10.0.0.1/24")
        etcd = stack.enter_context(etcd_in(ns, tmp_path))
        forks = stack.enter_context(forks_in(ns))
        node = Node(ns, "n1", tmp_path / "n1", EtcdStore(etcd.client_url, forks), bin_dir=bundle)
        node.root.mkdir()
        node.calico_node("-startup")
        stack.callback(node.end)
        yield Lab(node.run("-felix").until_applied(), etcd, forks, stack)


def test_the_agent_pays_alone(owed_lab: Lab) -> None:
    node, first, other = owed_lab.node, owed_lab.pod("a"), owed_lab.pod("b")
    node.add(first)
    node.add(other)
    assert owed_lab.held() == {"calnet.owed-a", "calnet.owed-b"}
    owed_lab.etcd.stop()
    node.cni("DEL", first)
    assert len(node.intents()) == 1
    owed_lab.start_etcd()
    until(lambda: not node.intents(), "the intent is carried out", 40)
    assert owed_lab.held() == {"calnet.owed-b"}
    assert owed_lab.carried_out() == 1 and "released what calnet/owed-a/eth0 held" in node.log()
    node.cni("DEL", other)
    assert owed_lab.held() == set() and owed_lab.carried_out() == 1


def test_calls_and_the_agent_pay_once(owed_lab: Lab) -> None:
    """Both are at it when the datastore returns; the agent is killed in between and finds what is left."""
    node, pods = owed_lab.node, [owed_lab.pod(name) for name in "abcd"]
    for pod in pods:
        node.add(pod)
    owed_lab.etcd.stop()
    for pod in pods[:3]:
        node.cni("DEL", pod)
    assert len(node.intents()) == 3
    node.stop(signal.SIGKILL)
    owed_lab.start_etcd()
    node.run("-felix")
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(node.cni, "DEL", pods[3]) for _ in range(3)]:
            done.result()
    until(lambda: not node.intents(), "all are carried out", 40)
    assert owed_lab.held() == set()
    assert owed_lab.carried_out() == 3


def test_what_is_owed_to_another_datastore_stays(owed_lab: Lab) -> None:
    node, pod = owed_lab.node, owed_lab.pod("a")
    node.add(pod)
    owed_lab.etcd.stop()
    node.cni("DEL", pod)
    (name,) = node.intents()
    path = node.root / "lib" / "cni" / "pending-del" / name
    elsewhere = path.with_name("0" * 40 + ".json")
    elsewhere.write_text(path.read_text().replace("127.0.0.1:2379", "192.0.2.1:2379"))
    unreadable = path.with_name("1" * 40 + ".json")
    unreadable.write_text("{")
    owed_lab.start_etcd()
    until(lambda: name not in node.intents(), "what is owed to ours is carried out", 40)
    assert sorted(node.intents()) == [elsewhere.name, unreadable.name]
    until(lambda: "cannot read the owed release" in node.log(), "what cannot be read is told")
