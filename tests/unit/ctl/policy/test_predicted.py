"""What replay says of random flows after random changes is what ``decide`` says of their packets, by the labels that
their pods had: some are gone since, some have others.
"""

from collections import Counter
from dataclasses import replace
from ipaddress import ip_address

import pytest

from cni_calico.ctl.policy.proposed import compared
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.policy.replayed import Replay
from cni_calico.ctl.policy.told_labels import ANOTHER_S, told_labels_for
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.decode import decode_record
from cni_calico.policy.explain import Packet, decide
from cni_calico.policy.graph import Graph
from tests.unit.ctl.policy.shop import PODS, flow, pods, policy

APPS = ("db", "web", "cache")
PROFILE = ResourceKey("Profile", "kns.shop")
ALLOW = {"metadata": {"name": "kns.shop"}, "spec": {"egress": [{"action": "Allow"}]}}


def policies(chosen):
    found = {}
    for number in range(chosen.randrange(4)):
        peers = [(f"app == '{chosen.choice(APPS)}'", [chosen.randrange(1, 4)]) for _ in range(chosen.randrange(3))]
        types, action = (chosen.choice(("Ingress", "Egress")),), chosen.choice(("Allow", "Allow", "Deny", "Pass"))
        made = policy(f"p{number}", f"app == '{chosen.choice(APPS)}'", peers, types=types, action=action)
        if made["spec"].get("ingress") and not chosen.randrange(4):
            made["spec"]["ingress"][0]["source"] = {"nets": [f"10.65.0.{2 * chosen.randrange(3)}/31"]}
        key = ResourceKey("NetworkPolicy", f"p{number}", "shop")
        found[key] = decode_record(key, made)[0]
    return found


def decided_by(records):
    graph = Graph(lambda _: True, lambda _: True, alone=False)
    for key, record in records.items():
        graph.put(key, record)
    graph.flush()
    return graph.wanted()


def since(chosen, then):
    """Pods as they are now: gone, with another label, or another one at the same address."""
    now = {}
    for key, record in then.items():
        what = chosen.randrange(6)
        labels = {**record.metadata.labels, "app": chosen.choice(APPS)}
        if what == 0:
            continue
        if what == 1:
            record = replace(record, metadata=replace(record.metadata, labels=labels))
        if what == 2:
            key = ResourceKey(key.kind, f"other-{key.name}", key.namespace)
            metadata = replace(record.metadata, name=key.name, labels=labels)
            record = replace(record, metadata=metadata, pod=f"other.{record.pod}")
        now[key] = record
    return now


def predicted(chosen, counts):
    """A random change, and ten random flows, recorded as they were decided before; ``counts`` by what was said."""
    then = {}
    for document in pods():
        key = ResourceKey("WorkloadEndpoint", document["metadata"]["name"], "shop")
        then[key] = decode_record(key, document)[0]
    keys = {record.pod: key for key, record in then.items()}
    profile = {PROFILE: decode_record(PROFILE, ALLOW)[0]}
    before, after = policies(chosen), policies(chosen)
    states = [decided_by({**then, **profile, **its}) for its in (before, after)]
    now = then if chosen.randrange(2) else since(chosen, then)
    removed = [key for key in before if key not in after]
    change = compared(PolicyRecords(records={**now, **profile, **before}), after, removed, [], ())
    expected = Counter()
    left = told_labels_for(change)
    replay = Replay(change.records, change.before, change.after, None, left)
    for _ in range(10):
        source, destination = chosen.sample(sorted(PODS), 2)
        port = chosen.randrange(1, 4)
        ends = (ip_address(then[keys[name]].ip_networks[0].network_address) for name in (source, destination))
        packet = Packet(*ends, 6, 40000, port)
        was, will = (
            any(
                decide(state, keys[name], direction, packet).verdict == "Deny"
                for name, direction in ((source, "egress"), (destination, "ingress"))
            )
            for state in states
        )
        told = flow(source, destination, port=port, verdict="denied" if was else "allowed")
        for side in ("source", "destination"):
            told[side]["labels"] = dict(then[keys[told[side]["name"]]].metadata.labels)
        replay.add(told)
        expected["as before" if was == will else "denied" if will else "allowed"] += 1
    replay.finish(change)
    assert not replay.drifted and replay.uncertain.keys() <= {ANOTHER_S}, (replay.drifted, replay.uncertain)
    found = Counter({"as before": replay.same})
    for row in replay.changed.values():
        found["denied" if row.after.denied else "allowed"] += row.connections
    assert found <= expected and sum(found.values()) + replay.uncertain[ANOTHER_S] == 10
    counts.update(found)
    counts["uncertain"] += replay.uncertain[ANOTHER_S]
    counts["of pods that are gone or have other labels"] += len(left.flows)


def run(chosen, changes):
    counts = Counter()
    for _ in range(changes):
        predicted(chosen, counts)
    print(dict(counts))
    assert sum(counts[one] for one in ("as before", "denied", "allowed", "uncertain")) == 10 * changes
    assert min(counts.values()) > 0 and counts["uncertain"] < changes


def test_what_is_predicted_is_what_decide_says(drawing):
    run(drawing.random(36), 60)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_what_is_predicted_of_many_is_what_decide_says(drawing):
    run(drawing.random(63), 10_000)
