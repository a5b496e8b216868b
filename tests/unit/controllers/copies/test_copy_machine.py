"""Namespaces, accounts, policies, nodes and pods come and go while leaders with stale caches, failing writes and
crashes follow one another: what is not theirs is never touched, nothing that lives is removed, and when all has been
seen the datastore says what a naive copy of Kubernetes says.

CALICO_MACHINE_EXAMPLES=N runs N examples instead of the few that every test run can afford.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cni_calico.controllers.copies.reconciler import CopySources, Reconciler
from cni_calico.controllers.copies.rules import ENDPOINTS, NAMESPACES, NODES, POLICIES, SERVICE_ACCOUNTS
from cni_calico.controllers.due import LONGEST_PAUSE_S, DueTasks
from cni_calico.datastore.interface import Versioned, Write
from cni_calico.errors import CalicoError, CorruptRecord
from cni_calico.model.keys import ResourceKey, covers, parse_path
from cni_calico.model.kubernetes.policies import NETWORK_POLICY
from cni_calico.model.names import endpoint_name
from tests.deadlines import soon
from tests.fakes.memory_store import MemoryStore

EXAMPLES = int(os.environ.get("CALICO_MACHINE_EXAMPLES", "40"))
NAMES = st.sampled_from(["a", "b"])
LABELS = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["", "1", "2"]))
COPY_RULES = (NAMESPACES, SERVICE_ACCOUNTS, ENDPOINTS, POLICIES, NODES)
WHICH = st.integers(0, len(COPY_RULES) - 1)
PORTS = st.lists(st.sampled_from([80, 443, None]), max_size=2)
FOREIGN = [
    ResourceKey("Profile", "kns"),
    ResourceKey("Profile", "net1"),
    ResourceKey("WorkloadEndpoint", endpoint_name("n1", "cni", "a", "eth0"), "a"),
    ResourceKey("NetworkPolicy", "default.a", "a"),
    ResourceKey("NetworkPolicy", "knp.other.a", "a"),
]
PLACE = "StagedKubernetesNetworkPolicy"
OWN_LABELS = {"mine": "1", "x": "own"}


def stored_policy(name):
    return ResourceKey("NetworkPolicy", f"knp.default.{name}", "a")


class FakeKubernetes:
    """The API server. A store of records has no place for its policies, so they are kept under another kind."""

    def __init__(self):
        self.store = MemoryStore()

    def elsewhere(self, write):
        self.store.elsewhere(replace(write, key=self._inside(write.key)))

    def get(self, key, deadline):
        found = self.store.get(self._inside(key), deadline)
        return None if found is None else replace(found, key=key)

    def list(self, listing, deadline):
        inside = replace(listing, kind=PLACE) if listing.kind == NETWORK_POLICY else listing
        found = self.store.list(inside, deadline)
        return replace(found, items=[replace(item, key=self._outside(item.key)) for item in found.items])

    def objects(self):
        return {self._outside(parse_path(path)): document for path, document in self.store.documents().items()}

    def _inside(self, key):
        return key._replace(kind=PLACE) if key.kind == NETWORK_POLICY else key

    def _outside(self, key):
        return key._replace(kind=NETWORK_POLICY) if key.kind == PLACE else key


class StaleShelf:
    """What a cache knew when it was looked at last."""

    def __init__(self, store, listing, decode):
        self.store, self.listing, self.decode = store, listing, decode
        self.known: dict[ResourceKey, Versioned] = {}
        self.decoded: dict[ResourceKey, object] = {}
        self.changed: set[ResourceKey] = set()

    def refresh(self):
        found = {item.key: item for item in self.store.list(self.listing, soon()).items}
        self.changed |= {key for key in found.keys() | self.known.keys() if found.get(key) != self.known.get(key)}
        self.known, self.decoded = found, {}
        for key, item in found.items():
            try:
                self.decoded[key] = self.decode(item.value)
            except CorruptRecord:
                pass

    def take(self):
        changed, self.changed = self.changed, set()
        return changed

    def get(self, key):
        return self.known.get(key)

    def record(self, key):
        return self.decoded.get(key)

    def items(self):
        return self.known


class Worker:
    """One leader's loop for one rule, driven by hand; the clock is the machine's."""

    def __init__(self, rule, kubernetes, store):
        self.objects = StaleShelf(kubernetes, rule.objects, rule.read_object)
        self.records = StaleShelf(store, rule.records, rule.read_record)
        self.objects.refresh()
        self.records.refresh()
        self.reconciler = Reconciler(rule, CopySources(self.objects, self.records, kubernetes, store))
        self.tasks = DueTasks()

    def step(self, now):
        self.tasks.note(self.reconciler.concerned_by_records(self.records.take()), now)
        self.tasks.note(self.reconciler.concerned_by_objects(self.objects.take()), now)
        for key in self.tasks.due(now, 3):
            try:
                self.reconciler.reconcile(key, soon())
                self.tasks.done(key)
            except CalicoError:
                self.tasks.failed(key, now)


def profile(name, labels):
    spec = {"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]} if name.startswith("kns.") else {}
    spec["labelsToApply"] = labels
    return ResourceKey("Profile", name), {"kind": "Profile", "metadata": {"name": name}, "spec": spec}


class CopyMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.kubernetes, self.store = FakeKubernetes(), MemoryStore()
        self.now = 0.0
        for key in FOREIGN:
            self.store.elsewhere(
                Write.put(key, {"kind": key.kind, "metadata": {"name": key.name}, "spec": {"mine": 1}})
            )
        self.made: set[ResourceKey] = set()
        self.nodes: dict[ResourceKey, str] = {}
        self.workers = [self.lead(), self.lead()]

    def lead(self):
        return [Worker(rule, self.kubernetes, self.store) for rule in COPY_RULES]

    # -- what happens in the cluster ----------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(["kns.{}", "ksa.a.{}"]), name=NAMES, labels=LABELS)
    def object_is_written(self, kind, name, labels):
        self.kubernetes.elsewhere(Write.put(*profile(kind.format(name), labels)))

    @rule(kind=st.sampled_from(["kns.{}", "ksa.a.{}"]), name=NAMES)
    def object_goes(self, kind, name):
        self.kubernetes.elsewhere(Write.remove(ResourceKey("Profile", kind.format(name))))

    @rule(pod=NAMES, labels=LABELS, account=st.sampled_from(["", "s1"]), has_address=st.booleans())
    def pod_is_written(self, pod, labels, account, has_address):
        spec = {"pod": pod, "node": "n1", **({"ipNetworks": ["10.0.0.1/32"]} if has_address else {})}
        if account:
            spec["serviceAccountName"] = account
        key = ResourceKey("WorkloadEndpoint", endpoint_name("n1", "k8s", pod, "eth0"), "a")
        document = {"kind": key.kind, "metadata": {"name": key.name, "namespace": "a", "labels": labels}, "spec": spec}
        self.kubernetes.elsewhere(Write.put(key, document))

    @rule(pod=NAMES)
    def pod_goes(self, pod):
        self.kubernetes.elsewhere(Write.remove(ResourceKey("WorkloadEndpoint", f"n1-k8s-{pod}-eth0", "a")))

    @rule(pod=NAMES, ifname=st.sampled_from(["eth0", "eth1"]), labels=LABELS)
    def endpoint_is_added(self, pod, ifname, labels):
        key = ResourceKey("WorkloadEndpoint", endpoint_name("n1", "k8s", pod, ifname), "a")
        document = {
            "kind": key.kind,
            "metadata": {"name": key.name, "namespace": "a", "labels": labels},
            "spec": {"interfaceName": f"cali{pod}"},
        }
        self.store.elsewhere(Write.put(key, document))
        self.made.add(key)

    @rule(pod=NAMES, ifname=st.sampled_from(["eth0", "eth1"]))
    def endpoint_goes(self, pod, ifname):
        key = ResourceKey("WorkloadEndpoint", endpoint_name("n1", "k8s", pod, ifname), "a")
        self.store.elsewhere(Write.remove(key))
        self.made.discard(key)

    @rule(name=NAMES, ports=PORTS)
    def policy_is_written(self, name, ports):
        """None: a rule that cannot be converted."""
        wrong = {"from": [{"ipBlock": {"cidr": "nonsense"}}]}
        rules = [{"ports": [{"port": port}]} if port else wrong for port in ports]
        spec = {"podSelector": {"matchLabels": {"app": name}}, "ingress": rules}
        document = {"metadata": {"name": name, "namespace": "a"}, "spec": spec}
        self.kubernetes.elsewhere(Write.put(ResourceKey(NETWORK_POLICY, name, "a"), document))

    @rule(name=NAMES)
    def policy_goes(self, name):
        self.kubernetes.elsewhere(Write.remove(ResourceKey(NETWORK_POLICY, name, "a")))

    @rule(name=NAMES)
    def somebody_edits_a_policy(self, name):
        key = stored_policy(name)
        document = {"kind": key.kind, "metadata": {"name": key.name, "namespace": "a"}, "spec": {"order": 7}}
        self.store.elsewhere(Write.put(key, document))

    @rule(name=NAMES, labels=LABELS)
    def node_is_written(self, name, labels):
        document = {"kind": "Node", "metadata": {"name": f"kube-{name}", "labels": labels}}
        self.kubernetes.elsewhere(Write.put(ResourceKey("Node", f"kube-{name}"), document))

    @rule(name=NAMES)
    def node_goes(self, name):
        self.kubernetes.elsewhere(Write.remove(ResourceKey("Node", f"kube-{name}")))

    @rule(name=NAMES, of=st.sampled_from(["kube-a", "kube-b", ""]))
    def node_joins(self, name, of):
        """Its start-up writes the record; without ``of`` it is no node of Kubernetes."""
        key = ResourceKey("Node", name)
        refs = [{"orchestrator": "k8s", "nodeName": of}] if of else []
        document = {"kind": "Node", "metadata": {"name": name, "labels": dict(OWN_LABELS)}, "spec": {"orchRefs": refs}}
        self.store.elsewhere(Write.put(key, document))
        self.nodes[key] = of

    @rule(name=NAMES)
    def node_leaves(self, name):
        key = ResourceKey("Node", name)
        self.store.elsewhere(Write.remove(key))
        self.nodes.pop(key, None)

    @rule(name=NAMES, labels=LABELS)
    def somebody_edits_a_profile(self, name, labels):
        self.store.elsewhere(Write.put(*profile(f"kns.{name}", {**labels, "edited": "yes"})))

    @rule(name=NAMES)
    def somebody_spoils_a_profile(self, name):
        self.store.elsewhere(Write.put(ResourceKey("Profile", f"ksa.a.{name}"), {"metadata": {"name": 1}, "spec": [3]}))

    # -- what the leaders do ------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), which=WHICH, objects=st.booleans(), records=st.booleans())
    def caches_catch_up(self, who, which, objects, records):
        worker = self.workers[who][which]
        if objects:
            worker.objects.refresh()
        if records:
            worker.records.refresh()

    @rule(
        who=st.integers(0, 1),
        fates=st.lists(st.sampled_from([None, "fail", "lost", "vanish", "race"]), max_size=2),
    )
    def works(self, who, fates):
        self.store.script.extend(self._race if fate == "race" else fate for fate in fates)
        for worker in self.workers[who]:
            self._step(worker)
        self.store.script.clear()

    def _race(self, store):
        """Somebody writes to a profile just before the leader does."""
        for path, document in store.documents().items():
            key = parse_path(path)
            if key.kind in ("Profile", "NetworkPolicy", "Node") and key not in FOREIGN:
                store.elsewhere(Write.put(key, {**document, "raced": store.revision}))

    def _step(self, worker):
        before = len(self.store.commits)
        worker.step(self.now)
        alive = set(self.kubernetes.objects())
        alive |= {stored_policy(key.name) for key in alive if key.kind == NETWORK_POLICY}
        for writes in self.store.commits[before:]:
            for write in writes:
                assert write.key not in FOREIGN
                if write.op == "delete":
                    assert write.key.kind in ("Profile", "NetworkPolicy")
                    assert write.key not in alive, f"{write.key} was removed though its object lives"

    @rule(who=st.integers(0, 1))
    def dies_and_another_leads(self, who):
        self.workers[who] = self.lead()

    @rule(seconds=st.sampled_from([0.1, 1, 100]))
    def time_passes(self, seconds):
        self.now += seconds

    # -- what must be so ----------------------------------------------------------------------------------------------

    @invariant()
    def foreign_records_are_as_they_were(self):
        if not hasattr(self, "store"):
            return
        for key in FOREIGN:
            assert self.store.get(key, soon()).value["spec"] == {"mine": 1}

    @invariant()
    def endpoints_are_made_and_removed_by_the_plugin_alone(self):
        if not hasattr(self, "store"):
            return
        there = {key for key in map(parse_path, self.store.documents()) if covers(ENDPOINTS.records, key)}
        assert there - set(FOREIGN) == self.made

    @invariant()
    def nodes_are_made_and_removed_by_others_and_keep_their_own_labels(self):
        if not hasattr(self, "store"):
            return
        stored = {parse_path(path): document for path, document in self.store.documents().items()}
        assert {key for key in stored if key.kind == "Node"} == set(self.nodes)
        for key in self.nodes:
            assert stored[key]["metadata"]["labels"].get("mine") == "1"

    def teardown(self):
        if not hasattr(self, "store"):
            return
        for _ in range(20):  # as many as there are keys, a few at a time
            for worker in [*self.workers[0], *self.workers[1]]:
                self.now += 2 * LONGEST_PAUSE_S
                worker.objects.refresh()
                worker.records.refresh()
                self._step(worker)
        self.foreign_records_are_as_they_were()
        self.endpoints_are_made_and_removed_by_the_plugin_alone()
        copied = self.kubernetes.objects()
        stored = {parse_path(path): document for path, document in self.store.documents().items()}
        profiles = {key for key in stored if key.kind == "Profile"} - set(FOREIGN)
        assert profiles == {key for key in copied if key.kind == "Profile"}
        for key in profiles:
            assert stored[key]["spec"] == copied[key]["spec"]
        policies = {key for key in stored if key.kind == "NetworkPolicy"} - set(FOREIGN)
        assert policies == {stored_policy(key.name) for key in copied if key.kind == NETWORK_POLICY}
        for key, document in copied.items():
            if key.kind == NETWORK_POLICY:
                good = [rule for rule in document["spec"]["ingress"] if "ports" in rule]
                found = stored[stored_policy(key.name)]["spec"]
                ports = [rule["destination"]["ports"] for rule in found.get("ingress") or ()]
                assert ports == [[rule["ports"][0]["port"]] for rule in good]
                assert (found["order"], found["tier"]) == (1000, "default")
                assert f"app == '{key.name}'" in found["selector"]
        for key, of in self.nodes.items():
            node = copied.get(ResourceKey("Node", of)) if of else None
            if node is not None:  # one whose node is gone is the janitor's
                assert node["metadata"]["labels"].items() <= stored[key]["metadata"]["labels"].items()
                copies = stored[key]["metadata"]["annotations"]["projectcalico.org/kube-labels"]
                assert json.loads(copies) == node["metadata"]["labels"]
            elif not of:
                assert stored[key]["metadata"]["labels"] == OWN_LABELS
        for key in self.made:
            pod = copied.get(ResourceKey(key.kind, key.name.replace("eth1", "eth0"), "a"))
            if pod is None or "ipNetworks" not in pod["spec"]:
                continue
            assert stored[key]["metadata"]["labels"] == pod["metadata"]["labels"]
            assert stored[key]["spec"].get("serviceAccountName") == pod["spec"].get("serviceAccountName")
            assert stored[key]["spec"]["interfaceName"].startswith("cali")
        before = self.store.revision
        for worker in [*self.workers[0], *self.workers[1]]:
            worker.tasks.note(worker.reconciler.everything(), self.now)
            self._step(worker)
        assert self.store.revision == before, "what is as it should be is not written"


TestCopyMachine = CopyMachine.TestCase
TestCopyMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
