"""Eight processes, all verbs at once, the same containers and different ones, with kills at any moment: afterwards the
records fit together, no address is used twice, and nothing is left once a GC has been round.

Rule: what is asked concurrently is what runtimes ask: GC names as valid whatever is not its business, and no GC runs
while an attachment that it does not name is being added.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from cni_calico.ipam.consistency import Records, check_records
from cni_calico.model.documents.codec import decode
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, ResourceKey, parse_path
from tests.e2e.forks import Forks, forks_in
from tests.e2e.host import Node, Reply
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Killed, Namespace

pytestmark = pytest.mark.netns

WORKERS = 8
ROUNDS = 22
SHARED = 6  # containers whose IDs begin with the same 11 characters, so that they want the same interface name
SANDBOXES = 3  # of one pod, each in a namespace of its own
DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}
SHARED_NAMES = [f"shared{which:06}" for which in range(SHARED)]
SANDBOX_NAMES = [f"sandbox{which}" for which in range(SANDBOXES)]
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web-0"
VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS", "ghost", "own", "pod ADD", "pod DEL")
WEIGHTS = (25, 20, 6, 7, 3, 12, 12, 10, 8)
# what others may get in the way of: busy, changed meanwhile, an interface or a record that has just gone
EXPECTED = {11, 120, 121, 122, 123, 124, 132, 133}
# an ADD that was killed has signed the interface and recorded nothing: nobody else gets the name until its DEL
TAKEN = 127


@dataclass
class Ledger:
    """Which container holds which address, as far as the answers tell for certain."""

    held: dict[str, str] = field(default_factory=dict)
    removals: Counter[str] = field(default_factory=Counter)  # begun so far
    removing: Counter[str] = field(default_factory=Counter)  # under way
    guard: threading.Lock = field(default_factory=threading.Lock)
    twice: list[str] = field(default_factory=list)

    @contextmanager
    def removal(self, container: str) -> Iterator[None]:
        with self.guard:
            self.removals[container] += 1
            self.removing[container] += 1
            self.held = {address: holder for address, holder in self.held.items() if holder != container}
        try:
            yield
        finally:
            with self.guard:
                self.removing[container] -= 1

    def note(self, container: str, reply: Reply, removals_before: int) -> None:
        with self.guard:
            if self.removing[container] or self.removals[container] != removals_before:
                return
            for ip in reply.document["ips"]:
                holder = self.held.setdefault(ip["address"], container)
                if holder != container:
                    self.twice.append(f"{ip['address']}: {holder} and {container}")


class Passage:
    """Any number of ghosts at a time, or one GC."""

    def __init__(self) -> None:
        self.ghosts = 0
        self.changed = threading.Condition()

    @contextmanager
    def ghost(self) -> Iterator[None]:
        with self.changed:
            self.ghosts += 1
        try:
            yield
        finally:
            with self.changed:
                self.ghosts -= 1
                self.changed.notify_all()

    @contextmanager
    def collector(self) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: not self.ghosts)
            yield


@dataclass
class Worker:
    """One of the processes: it asks for random things, some of which kill it."""

    node: Node
    forks: Forks
    number: int
    pods: list[Namespace]
    sandboxes: list[Namespace]
    own_pod: Namespace
    ledger: Ledger
    passage: Passage
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{os.environ.get('CCT_SEED', '')}/{self.number}")
        self.node = Node(
            self.node.host, self.node.root, self.node.datastore, environ=dict(self.node.environ), forks=self.forks
        )

    def run(self) -> None:
        try:
            for number in range(ROUNDS):
                self._round(number)
        except BaseException as e:
            self.problems.append(f"worker {self.number}: {type(e).__name__}: {e}")

    def _round(self, number: int) -> None:
        which = self.random.randrange(SHARED)
        container, pod = SHARED_NAMES[which], self.pods[which]
        verb = self.random.choices(VERBS, WEIGHTS)[0]
        if verb == "ADD":
            self._add(container, pod)
        elif verb == "DEL":
            self._del(container, pod)
        elif verb == "CHECK":
            previous = {"ips": [{"address": "10.65.0.1/32"}]}
            self._call("CHECK", container, pod.path, prevResult=previous)
        elif verb == "STATUS":
            self._call("STATUS", "", "")
        elif verb == "GC":
            with self.passage.collector():
                self._call("GC", "", "", **valid(self._valid()))
        elif verb == "ghost":
            with self.passage.ghost():
                self._call("ADD", f"ghost{self.number}x{number:03}", self.own_pod.path, **DUAL)
            with self.passage.ghost():  # its namespace is used again, as after a reboot
                self._call("DEL", f"ghost{self.number}x{number:03}", self.own_pod.path, **DUAL)
        elif verb.startswith("pod"):
            which = self.random.randrange(SANDBOXES)
            act = self._add if verb == "pod ADD" else self._del
            act(f"sandbox{which}", self.sandboxes[which], args=POD)
        else:
            self._own(f"own{self.number}")

    def _valid(self) -> list[str]:
        return [*SHARED_NAMES, *SANDBOX_NAMES, *(f"own{number}" for number in range(WORKERS))]

    def _own(self, container: str) -> None:
        """An attachment that nobody else touches has to work."""
        added = self._add(container, self.own_pod)
        if added is not None and added.ok:
            checked = self._call("CHECK", container, self.own_pod.path, prevResult=added.document, **DUAL)
            if checked is not None and not checked.ok and not self._was_injected(checked):
                self.problems.append(f"{container}: {checked}")
        while (deleted := self._del(container, self.own_pod)) is None or not deleted.ok:
            pass

    def _add(self, container: str, pod: Namespace, **options: Any) -> Reply | None:
        before = self.ledger.removals[container]
        reply = self._call("ADD", container, pod.path, **DUAL, **options)
        if reply is not None and reply.ok:
            self.ledger.note(container, reply, before)
        return reply

    def _del(self, container: str, pod: Namespace, **options: Any) -> Reply | None:
        with self.ledger.removal(container):
            return self._call("DEL", container, pod.path, **DUAL, **options)

    def _was_injected(self, reply: Reply) -> bool:
        return "injected fault" in str(reply.document)

    def _call(self, command: str, container: str, netns: str, **options: Any) -> Reply | None:
        """None when it was killed."""
        fault = ""
        if self.random.random() < 0.35:
            when, nth = self.random.choice(("before", "after")), self.random.randrange(1, 30)
            fault = f"*:{when}:{nth}:{self.random.choice(('kill', 'kill', 'fail'))}"
        try:
            reply = self.node.call(command, container, netns, fault=fault, **options)
        except Killed as e:
            assert "9" in str(e), f"{command} {container}: {e}"
            self.outcomes[f"{command} killed"] += 1
            return None
        self.outcomes[f"{command} {'ok' if reply.ok else reply.document['code']}"] += 1
        expected = EXPECTED | ({TAKEN} if container in SHARED_NAMES else set())
        if not reply.ok and reply.document["code"] not in expected and not self._was_injected(reply):
            self.problems.append(f"{command} {container}: {reply}")
        return reply


def valid(containers: list[str]) -> dict[str, Any]:
    return {"cni.dev/valid-attachments": [{"containerID": name, "ifname": "eth0"} for name in containers]}


def findings(node: Node) -> list[str]:
    """What 'calicoctl ipam check' would say of the records."""
    blocks, handles, affinities = {}, {}, {}
    kinds: dict[str, list[Any]] = {"WorkloadEndpoint": [], "Node": [], "IPPool": []}
    for path, document in node.dump().items():
        key = parse_path(path)
        record: Any = None if key is None else decode(key, document)
        if isinstance(key, BlockKey):
            blocks[key.cidr] = record
        elif isinstance(key, HandleKey):
            handles[key.handle_id] = record
        elif isinstance(key, AffinityKey):
            affinities[key] = record
        elif isinstance(key, ResourceKey) and key.kind in kinds:
            kinds[key.kind].append(record)
    endpoints, nodes, pools = kinds.values()
    records = Records(blocks, handles, affinities, endpoints, nodes, pools)
    return [finding.text for finding in check_records(records).findings]


def test_everything_at_once(forking_node: Node, make_pod_ns: MakeNamespace) -> None:
    pods = [make_pod_ns(f"s{which}") for which in range(SHARED)]
    sandboxes = [make_pod_ns(f"b{which}") for which in range(SANDBOXES)]
    ledger, passage = Ledger(), Passage()
    with ExitStack() as stack:
        workers = [
            Worker(
                forking_node,
                stack.enter_context(forks_in(forking_node.host)),
                number,
                pods,
                sandboxes,
                make_pod_ns("own"),
                ledger,
                passage,
            )
            for number in range(WORKERS)
        ]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert not any(thread.is_alive() for thread in threads)
    total = sum((worker.outcomes for worker in workers), Counter[str]())
    print(dict(sorted(total.items())))
    assert not [problem for worker in workers for problem in worker.problems]
    assert not ledger.twice
    assert total["ADD ok"] and total["DEL ok"] and sum(n for what, n in total.items() if "killed" in what) > WORKERS
    settle(forking_node, pods, sandboxes)


def settle(node: Node, pods: list[Namespace], sandboxes: list[Namespace]) -> None:
    """Every shared container, and the pod's last sandbox, is added once more and must be whole; what else there is a
    GC takes away.
    """
    added = {name: node.call("ADD", name, pod.path, **DUAL) for name, pod in zip(SHARED_NAMES, pods, strict=True)}
    *old, last = zip(SANDBOX_NAMES, sandboxes, strict=True)
    added[last[0]] = node.call("ADD", last[0], last[1].path, args=POD, **DUAL)
    for name, pod in old:
        assert node.call("DEL", name, pod.path, args=POD, **DUAL).ok and pod.link("eth0") is None
    alive = sorted([*SHARED_NAMES, last[0]])
    assert all(reply.ok for reply in added.values()), added
    collected = node.call("GC", "", "", **valid(alive))
    assert collected.ok, collected
    for name, pod in (*zip(SHARED_NAMES, pods, strict=True), last):
        args = POD if name == last[0] else ""
        checked = node.call("CHECK", name, pod.path, prevResult=added[name].document, args=args, **DUAL)
        assert checked.ok, checked
    given = [ip["address"] for reply in added.values() for ip in reply.document["ips"]]
    assert len(given) == len(set(given)) == len(node.taken()) == 2 * len(alive)
    assert sorted(e["spec"]["containerID"] for e in node.endpoints()) == alive
    assert not findings(node)
    assert len([link for link in node.host.ip("link", "show") if link["ifname"].startswith("cali")]) == len(alive)
    assert node.call("GC", "", "", **valid([])).ok
    assert not node.leftovers() and not findings(node)
    assert not any(pod.link("eth0") for pod in (*pods, *sandboxes))


def test_forked_calls_of_several_threads_get_their_own_answers(host_ns: Namespace) -> None:
    """The tests' own way of calling, which has one pipe."""
    with forks_in(host_ns) as forks, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: forks.call(abs, -number), range(60))) == list(range(60))
