"""Random records in random order: the same as computed from scratch, and the same verdicts as the naive evaluator's."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import decide, decide_host
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.graph import Graph
from cni_calico.policy.wanted import Wanted
from tests.unit.policy.cluster import NODE, PACKETS, as_packet, documents_for, graph_of, keys, put
from tests.unit.policy.merging import with_changes
from tests.unit.policy.naive import Naive

KEYS = keys()
POLICY_KEYS = [key for key in KEYS if key[0].endswith("Policy") and not key[0].startswith("Staged")]


HOST_STAGES = [
    (reach, direction)
    for reach in ("own", "forward", "beforeNat", "raw")
    for direction in ("ingress", "egress")
    if (reach, direction) != ("beforeNat", "egress")
]


class PolicyMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.graph = Graph(lambda record: record.node == NODE, lambda host: host.node == NODE)
        self.documents = {}
        self.told = Wanted()
        self.broken = set()

    def store(self, key, document):
        put(self.graph, key, document)
        self.broken.discard(key)
        self.documents.pop(key, None)
        if document is not None:
            self.documents[key] = document

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def change(self, data, key):
        self.store(key, data.draw(documents_for(key)))

    @rule(data=st.data(), first=st.integers(0, len(KEYS) - 1), step=st.integers(1, 7))
    def change_several(self, data, first, step):
        for key in (KEYS * 2)[first : first + len(KEYS) : step]:
            self.store(key, data.draw(documents_for(key)))

    @rule(key=st.sampled_from(KEYS))
    def remove(self, key):
        self.store(key, None)

    @rule()
    def remove_policies(self):
        for key in POLICY_KEYS:
            self.store(key, None)

    @rule(key=st.sampled_from(KEYS), data=st.data())
    def flap(self, key, data):
        before = self.documents.get(key)
        self.store(key, data.draw(documents_for(key)))
        self.store(key, before)

    @rule(key=st.sampled_from(POLICY_KEYS), field=st.sampled_from(["selector", "ingress", "order"]))
    def spoil(self, key, field):
        """A version that cannot be understood changes nothing."""
        put(self.graph, key, {"metadata": {}, "spec": {field: {"order": "first"}.get(field, "x ==")}})
        self.broken.add(key)

    @rule()
    def flush(self):
        flushed = self.graph.flush()
        changes, facts = flushed.changes, flushed.facts
        assert facts.missing_profiles == self.graph.missing_profiles()
        assert facts.missing_host_profiles == self.graph.missing_host_profiles()
        assert facts.needs == OtherNeeds(self.graph.selectors > 0, self.graph.services > 0, self.graph.nodes > 0)
        before = self.told
        self.told = with_changes(before, changes)
        assert self.told == self.graph.wanted()
        self.check_difference(before, changes)
        scratch = graph_of(dict(sorted(self.documents.items(), key=repr, reverse=True)))
        first = scratch.flush().changes
        assert with_changes(Wanted(), first) == scratch.wanted() == self.told
        self.check_references()
        self.check_verdicts()

    def check_difference(self, before, changes):
        """What is told as changed did change."""
        for name, change in changes.sets_changed.items():
            assert change.added or change.removed
            for added, removed, had in (
                (change.added.addresses, change.removed.addresses, before.sets[name].addresses),
                (change.added.nets, change.removed.nets, before.sets[name].nets),
                (change.added.ports, change.removed.ports, before.sets[name].ports),
            ):
                assert removed <= had and not added & had
        for old, changed in (
            (before.policies, changes.policies),
            (before.classes, changes.classes),
            (before.endpoints, changes.endpoints),
            (before.host_classes, changes.host_classes),
            (before.hosts, changes.hosts),
        ):
            assert all(old.get(name) != value for name, value in changed.items())
        assert changes.sets_removed <= set(before.sets) and not set(changes.sets_made) & set(before.sets)

    def check_references(self):
        told = self.told
        named = {endpoint.class_id for endpoint in told.endpoints.values()}
        assert named == set(told.classes)
        assert {host.class_id for host in told.hosts.values()} == set(told.host_classes)
        groups = (*told.classes.values(), *told.host_classes.values())
        policies = {policy for group in groups for policy in group.policy_ids()}
        hinted = {name for name in told.policies if name.kind != "Profile" and self.graph.policy(name).hint}
        assert policies | hinted == set(told.policies)
        sets = {name for policy in told.policies.values() for item in policy.rules() for name in item.set_ids()}
        assert sets == set(told.sets)

    def check_verdicts(self):
        naive = Naive(self.documents)
        for key in self.told.endpoints:
            for raw in PACKETS[:: 5 if len(self.told.endpoints) > 1 else 1]:
                for direction in ("ingress", "egress"):
                    found = decide(self.told, key, direction, as_packet(raw))
                    expected = naive.verdict((key.kind, key.namespace, key.name), direction, raw)
                    assert (found.verdict == "Allow") is expected, (key, direction, raw, found)

        for key in self.told.hosts:
            for raw in PACKETS[::9]:
                for reach, direction in HOST_STAGES:
                    found = decide_host(self.told, key, reach, direction, as_packet(raw))
                    expected = naive.host_verdict((key.kind, key.namespace, key.name), reach, direction, raw)
                    verdict = None if found is None else found.verdict == "Allow"
                    assert verdict is expected, (key, reach, direction, raw, found)

    @invariant()
    def problems_are_named(self):
        assert set(self.graph.problems) == {ResourceKey(key[0], key[2], key[1]) for key in self.broken}

    def teardown(self):
        self.flush()


SETTINGS = settings(
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TestPolicies = PolicyMachine.TestCase
TestPolicies.settings = settings(SETTINGS, max_examples=25)


@pytest.mark.slow
def test_for_long():
    run_state_machine_as_test(PolicyMachine, settings=settings(SETTINGS, max_examples=1000))
