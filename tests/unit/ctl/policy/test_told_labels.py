"""``calicoctl policy replay`` of pods that are gone, or have other labels now: the labels that flows tell decide."""

import json

import pytest

from cni_calico.ctl.policy import told_labels
from cni_calico.ctl.policy.flow_ends import RELABELLED
from cni_calico.flows.deciders import Decider, render_line
from cni_calico.flows.names import ENDS, AddressedEnd, EndName, render_ends
from cni_calico.flows.query import FlowQuery
from cni_calico.flows.recorder import DIRECTORY
from tests.fakes.stepped_recorder import SteppedRecorder, arriving_instead_of_the_kernel
from tests.unit.ctl.policy.shop import POLICIES, flow, pod, policy, stored, write, write_flows

CLOSED = policy("database", "app == 'db'", [])
WEB, CACHE = {"app": "web"}, {"app": "cache"}


@pytest.fixture
def found_by_replay(calicoctl, tmp_path):
    """What a replay of these flows against the stored shop finds."""

    def do(new, *flows, before=POLICIES["database"], more=()):
        calicoctl.write(stored([before, *more]))
        lines, file = write_flows(tmp_path / "flows.jsonl", *flows), write(tmp_path / "new.yaml", new)
        result = calicoctl("policy", "replay", "--with", file, "--flows", lines, "--any", "-o", "json")
        found = json.loads(result.out)
        assert found["changedSince"] == [], found
        return [(one["from"], one["connections"]) for one in found["changes"]], found["unchanged"], found["uncertain"]

    return do


def of(name, labels, ip="10.65.0.77", **more):
    sender = {"kind": "pod", "namespace": "shop", "name": name, "ip": ip, "labels": labels}
    return flow("x", "db-0", sender=sender, **more)


def test_a_pod_that_is_gone(found_by_replay):
    """Of its owner nothing else is left, or another version."""
    gone, version = of("job-1", WEB, count=4), of("web-3", {**WEB, "v": "1"}, "10.65.0.78", count=2)
    assert found_by_replay(CLOSED, gone, version, flow("web-1", "db-0")) == ([("shop/app=web", 7)], 0, {})


def test_a_pod_that_has_other_labels_now(found_by_replay):
    assert found_by_replay(CLOSED, of("cache-0", WEB, "10.65.0.4")) == ([("shop/app=web", 1)], 0, {})


def test_a_pod_whose_address_another_one_has_now(found_by_replay):
    """It is judged as if it had one that no rule tells from it; if one does, nobody knows."""
    gone = of("job-1", CACHE, "10.65.0.1", verdict="denied", count=3)
    opened = policy("database", "app == 'db'", [("app == 'cache'", [5432])])
    assert found_by_replay(opened, gone) == ([("shop/app=cache", 3)], 0, {})
    opened["spec"]["ingress"][0]["source"] = {"nets": ["10.65.0.0/24"]}
    assert found_by_replay(opened, gone) == ([("shop/app=cache", 3)], 0, {})
    opened["spec"]["ingress"][0]["source"] = {"nets": ["10.65.0.1/32"]}
    assert found_by_replay(opened, gone) == ([], 0, {told_labels.ANOTHER_S: 3})


@pytest.mark.parametrize(
    ("rule", "labels", "sure"),
    [
        ({"serviceAccounts": {"names": ["job"]}}, WEB, False),
        ({"serviceAccounts": {"names": ["job"]}}, {**WEB, "projectcalico.org/serviceaccount": "job"}, True),
        ({"namespaceSelector": "projectcalico.org/name == 'shop'"}, WEB, True),
    ],
)
def test_what_else_a_rule_asks_of_it_has_to_be_known(found_by_replay, rule, labels, sure):
    new = policy("database", "app == 'db'", [("app == 'web'", [5433])])
    new["spec"]["ingress"].append({"action": "Allow", "protocol": "TCP", "source": rule})
    account = {"apiVersion": "projectcalico.org/v3", "kind": "Profile", "metadata": {"name": "ksa.shop.job"}}
    account["spec"] = {"labelsToApply": {"pcsa.projectcalico.org/name": "job"}}
    changes, unchanged, uncertain = found_by_replay(new, of("job-1", labels), more=[account])
    assert (changes, unchanged, sum(uncertain.values())) == ([], 1 if sure else 0, 0 if sure else 1)


def test_ports_with_names_and_namespaces_that_are_gone(found_by_replay):
    named = policy("database", "app == 'db'", [("app == 'web'", ["sql"])])
    assert list(found_by_replay(named, of("job-1", WEB))[2].values()) == [1]
    elsewhere = of("job-1", WEB)
    elsewhere["source"]["namespace"] = "gone"
    assert list(found_by_replay(CLOSED, elsewhere)[2].values()) == [1]


def test_labels_of_a_version_that_no_rule_asks_for(found_by_replay, monkeypatch):
    """Pods of the version before count as those of now, without a second round."""
    monkeypatch.setattr(told_labels, "MOST_WORKLOADS", 0)
    before = of("web-9", {**WEB, "pod-template-hash": "old"}, count=5)
    assert found_by_replay(CLOSED, before) == ([("shop/app=web", 5)], 0, {})
    asking = policy("database", "app == 'db'", [("pod-template-hash == 'new'", [5432])])
    assert found_by_replay(asking, before)[2] == {told_labels.MANY: 5}


def test_too_many_are_uncertain(found_by_replay, monkeypatch):
    monkeypatch.setattr(told_labels, "MOST_FLOWS", 1)
    changes, _, uncertain = found_by_replay(CLOSED, of("job-1", WEB), of("job-2", WEB, "10.65.0.78", count=2))
    assert (changes, uncertain) == ([("shop/app=web", 1)], {told_labels.MANY: 2})


def test_without_a_name_nobody_is_who_was_made(found_by_replay):
    """A flow's address is not that of a workload that was made because of another end."""
    nobody = of("job-1", WEB)
    nobody["destination"] = {"kind": "address", "ip": "10.65.0.77", "port": 5432}
    assert found_by_replay(CLOSED, of("job-1", WEB), nobody)[2] == {
        "an address that several workloads or hosts say is theirs": 1
    }


def test_sums_of_five_minutes_in_which_labels_changed(found_by_replay):
    mixed = of("job-1", WEB, count=3)
    mixed["source"]["relabelled"] = True
    assert found_by_replay(CLOSED, mixed, flow("web-1", "db-0")) == ([("shop/app=web", 1)], 0, {RELABELLED: 3})


def test_a_pod_that_had_no_labels(found_by_replay):
    """That is known, too: it is not the pod that has some now."""
    opened = policy("database", "app == 'db'", [("has(app)", [5432])])
    bare = of("cache-0", {}, "10.65.0.4", verdict="denied", count=2)
    assert found_by_replay(opened, bare) == ([], 2, {})


def test_last_nights_sums_of_pods_that_are_gone(found_by_replay, tmp_path, monkeypatch):
    """As a recorder tells of them that was started again since, and has nothing but the file of sums."""
    numbers = tmp_path / DIRECTORY / "numbers"
    numbers.parent.mkdir()
    numbers.write_text(render_line(1001, Decider("NetworkPolicy", "shop", "database", "default", True, 0, "Allow")))

    def tell(*ends):
        named = [AddressedEnd(EndName("pod", "shop", name), [bytes((10, 65, 0, i))], its) for name, i, its in ends]
        (tmp_path / "new").write_bytes(render_ends("n1", named))
        (tmp_path / "new").rename(tmp_path / ENDS)

    key = bytes((10, 65, 0, 77, 10, 65, 0, 3, 6)) + (1000).to_bytes(2, "big") + (5432).to_bytes(2, "big")
    there = ("db-0", 3, {"app": "db"})
    arriving = arriving_instead_of_the_kernel(monkeypatch)
    tell(("job-1", 77, WEB), there)
    node = SteppedRecorder(tmp_path, arriving)
    node.step((True, key, 1001), after_s=1)
    node.recorder.close()
    tell(there)
    (tmp_path / DIRECTORY / "ring").unlink()
    node = SteppedRecorder(tmp_path, arriving)
    node.step(after_s=600)
    told = [one for one in node.recorder.documents(FlowQuery(since=0, aggregate=True)) if one]
    node.recorder.close()
    assert found_by_replay(CLOSED, *told) == ([("shop/app=web", 1)], 0, {})


def test_the_other_end_may_be_gone_too(found_by_replay):
    both = of("job-1", WEB, count=2)
    both["destination"] = {
        **both["source"],
        "name": "store-0",
        "ip": "10.65.0.79",
        "labels": {"app": "db"},
        "port": 5432,
    }
    assert found_by_replay(CLOSED, both, more=[pod(9, "other-1", "cache")]) == ([("shop/app=web", 2)], 0, {})
