"""``calicoctl policy recommend``: what is recorded stays allowed, what is not recorded is not opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from cni_calico.ctl.main import run
from tests.unit.ctl.policy.shop import PODS, POLICIES, endpoints_file, flow, pod, pods, write, write_flows

Recommends = Callable[..., tuple[int, str, str]]
OUTSIDE = {"kind": "address", "ip": "192.0.2.7"}
PARTNERS = {
    **{"apiVersion": "projectcalico.org/v3", "kind": "NetworkSet", "spec": {"nets": ["198.51.100.0/24"]}},
    "metadata": {"name": "partners", "namespace": "shop", "labels": {"who": "partners"}},
}


@pytest.fixture
def recommends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Recommends:
    def do(flows: list[dict[str, Any]], *options: str, policies: Any = (), endpoints: Any = ()) -> tuple[int, str, str]:
        (tmp_path / "old").mkdir(exist_ok=True)
        write(tmp_path / "old" / "all.yaml", *policies)
        ends = write(tmp_path / "ends.yaml", *endpoints) if endpoints else endpoints_file(tmp_path)
        lines = write_flows(tmp_path / "flows.jsonl", *flows)
        capsys.readouterr()
        words = ["policy", "recommend", "-n", "shop", "--dir", str(tmp_path / "old"), "--endpoints", ends]
        code = run([*words, "--flows", lines, *options], {})
        return code, *capsys.readouterr()

    return do


def documents(text: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in yaml.safe_load_all(text)}


def test_a_policy_for_each_workload(recommends: Recommends) -> None:
    flows = [
        flow("web-1", "db-0", count=3),
        flow("web-2", "db-0", port=5433, count=2),
        flow("cache-0", "web-1", port=80),
    ]
    code, out, err = recommends(flows)
    assert code == 0, err
    assert "6 recorded connections stay as they are" in err and "would be" not in err
    found = documents(out)
    assert list(found) == ["recommended-cache", "recommended-db", "recommended-web"]
    db = found["recommended-db"]["spec"]
    assert (db["selector"], db["types"]) == ("app == 'db'", ["Ingress", "Egress"])
    ingress = {"action": "Allow", "protocol": "TCP", "source": {"selector": "app == 'web'"}}
    assert db["ingress"] == [{**ingress, "destination": {"ports": ["5432:5433"]}}]
    assert [rule["destination"]["ports"] for rule in db["egress"]] == [[53], [53]]  # names are always looked up
    assert "# 5 connections, last 2026-11-26T14:02:11.403+00:00" in out


def test_addresses_outside(recommends: Recommends) -> None:
    """A network set that has them; else single ones, and of too many none."""
    many = [flow("db-0", "", to={"ip": f"192.0.2.{number}"}) for number in range(1, 23)]
    few = [flow("web-1", "", port=443, to={"ip": one}) for one in ("192.0.2.7", "192.0.2.8", "198.51.100.9")]
    code, out, err = recommends([*many, *few], endpoints=[*pods(), PARTNERS])
    assert code == 1 and "not opened: shop/db-0: egress TCP with 22 addresses outside (22 connections)" in err
    assert "would be denied, although recorded as allowed: shop/app=db -> 192.0.2.1 tcp/5432" in err
    found = documents(out)
    egress = [rule["destination"] for rule in found["recommended-web"]["spec"]["egress"][:-2]]
    assert {"nets": ["192.0.2.7/32", "192.0.2.8/32"], "ports": [443]} in egress
    assert {"selector": "who == 'partners'", "ports": [443]} in egress and len(egress) == 2
    assert len(found["recommended-db"]["spec"]["egress"]) == 2


def test_peers_of_other_namespaces(recommends: Recommends) -> None:
    """Workloads, and what a global network set has: each selects only who was meant, and what was recorded is kept."""
    ends = [*pods(), {**PARTNERS, "kind": "GlobalNetworkSet", "metadata": {**PARTNERS["metadata"], "namespace": ""}}]
    for number, (name, space) in enumerate((("web-1", "other"), ("scan-1", "other"), ("web-1", "third")), 20):
        one = pod(number, name, name[:-2])
        metadata = {**one["metadata"], "namespace": space}
        metadata["labels"] = {**metadata["labels"], "projectcalico.org/namespace": space}
        ends.append({**one, "metadata": metadata, "spec": {**one["spec"], "profiles": [f"kns.{space}"]}})
    web = {"kind": "pod", "namespace": "other", "name": "web-1", "ip": "10.65.0.20"}
    flows = [flow("", "db-0", sender=web), flow("db-0", "", port=443, to={"ip": "198.51.100.9"})]
    code, out, err = recommends(flows, endpoints=ends)
    assert code == 0 and "2 recorded connections stay as they are" in err and "would be" not in err, err
    db = documents(out)["recommended-db"]["spec"]
    (ingress,) = db["ingress"]
    assert ingress["source"] == {"selector": "app == 'web'", "namespaceSelector": "projectcalico.org/name == 'other'"}
    assert db["egress"][0]["destination"] == {
        "selector": "who == 'partners'",
        "namespaceSelector": "global()",
        "ports": [443],
    }


def test_labels_as_recorded(recommends: Recommends) -> None:
    """Of pods that are gone, which have a policy of their own, and of one that had others; what is learnt is kept."""

    def end(name: str, number: int, labels: dict[str, str], **more: Any) -> dict[str, Any]:
        where = {"kind": "pod", "namespace": "shop", "name": name, "ip": f"10.65.0.{number}"}
        return {**where, "labels": labels, **more}

    flows = [flow("x", "db-0", sender=end("job-7", 70 + i, {"app": "job", "job-name": str(i)})) for i in range(2)]
    flows += [flow("x", "db-0", sender=end("cache-0", 4, {"app": "cart"}), port=5433)]
    flows += [flow("web-1", "x", to=end("store-0", 80, {"app": "store", "tier": "1"}), port=80)]
    flows += [flow("x", "db-0", sender=end("web-1", 1, {"app": "web"}, relabelled=True), count=9)]
    code, out, err = recommends(flows, policies=list(POLICIES.values()))
    assert code == 0, err
    assert "learnt by labels of now: 4 connections do not tell the labels of an end" in err  # db-0 and web-1
    assert "not learnt: 9 connections: sums of a time in which the labels of an end changed" in err
    found = documents(out)
    selectors = {name: one["spec"]["selector"] for name, one in found.items()}
    assert sorted(selectors.values()) == [f"app == '{one}'" for one in ("cart", "db", "job", "store", "web")]
    ingress = found["recommended-db"]["spec"]["ingress"]
    assert [(one["source"]["selector"], one["destination"]["ports"]) for one in ingress] == [
        ("app == 'job'", [5432]),
        ("app == 'cart'", [5433]),
    ]


def test_what_was_denied_is_learnt_only_if_asked(recommends: Recommends) -> None:
    flows = [flow("web-1", "db-0"), flow("cache-0", "db-0", verdict="denied", count=4)]
    closed = list(POLICIES.values())
    code, out, err = recommends(flows, policies=closed)
    assert code == 0 and "not learnt: 4 connections: denied" in err and "cache" not in out
    code, out, err = recommends(flows, "--include-denied", policies=closed)
    assert code == 0 and "would be opened: shop/app=cache -> shop/app=db ingress tcp 5432" in err


def test_staged_ones_and_json(recommends: Recommends) -> None:
    code, out, _ = recommends([flow("web-1", "db-0")], "--kind", "StagedNetworkPolicy", "-o", "json")
    found = json.loads(out)
    assert code == 0 and (found["keptAllowed"], found["wouldBeDenied"], found["opens"]) == (1, [], [])
    assert {(one["kind"], one["spec"]["stagedAction"]) for one in found["policies"]} == {("StagedNetworkPolicy", "Set")}


def test_expectations_hold_and_do_not_without(recommends: Recommends, tmp_path: Path, capsys: Any) -> None:
    flows = [flow("web-1", "db-0"), flow("web-1", "", port=443, to={"ip": "192.0.2.7"})]
    _, out, _ = recommends(flows, "--expectations", str(tmp_path / "expected.yaml"))
    (tmp_path / "made.yaml").write_text(out)
    asked = ["policy", "test", str(tmp_path / "expected.yaml"), "--alone", "--endpoints", str(tmp_path / "pods.yaml")]
    assert run([*asked, "--with", str(tmp_path / "made.yaml")], {}) == 0, capsys.readouterr()
    assert "2 of 2 expectations hold" in capsys.readouterr().out
    (tmp_path / "made.yaml").write_text(out.replace("5432", "5433"))
    assert run([*asked, "--with", str(tmp_path / "made.yaml")], {}) == 1
    assert recommends(flows, "--expectations", str(tmp_path / "no" / "file"))[0] == 2


def test_what_cannot_be_learnt_is_said(recommends: Recommends) -> None:
    gone = flow("gone-1", "db-0", count=2)
    network = flow("", "db-0", sender={"kind": "network", "ip": "192.0.2.0"})
    by_reason = flow("web-1", "db-0", decided=[{"reason": "invalid"}])
    code, out, err = recommends([gone, network, by_reason])
    assert code == 2 and out == "" and "could be learnt from" in err
    for text in (
        "2 connections: a pod that is gone",
        "1 connections: addresses that are recorded",
        "not decided by",
    ):
        assert text in err
    code, _, err = recommends([{"verdict": "allowed", "source": 1}])
    assert code == 2 and "cannot learn: a line is no flow" in err


def test_random_flows_stay_allowed_and_others_do_not(recommends: Recommends, tmp_path: Path, capsys: Any) -> None:
    random, names = Random(5), list(PODS)
    for _ in range(4):
        seen = {(random.choice(names), random.choice(names), random.choice((80, 81, 443))) for _ in range(6)}
        code, out, err = recommends([flow(source, to, port=port) for source, to, port in sorted(seen)])
        assert code == 0 and f"{len(seen)} recorded connections stay" in err
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "made.yaml").write_text(out)
        apps = {(PODS[source], PODS[to], port) for source, to, port in seen}
        guarded = {app for one in apps for app in one[:2]}
        asked = [(one, other, port) for one in names for other in names for port in (80, 81, 443) if one != other]
        lines = write_flows(tmp_path / "all.jsonl", *(flow(one, other, port=port) for one, other, port in asked))
        ends, sides = endpoints_file(tmp_path), ("--dir", str(tmp_path / "old"), "--with", str(tmp_path / "new"))
        run(["policy", "replay", *sides, "--endpoints", ends, "--flows", lines, "-o", "json"], {})
        changes = json.loads(capsys.readouterr().out)["changes"]
        denied = {(one["from"], one["to"], one["traffic"]) for one in changes}
        for one, other, port in asked:
            allowed = (PODS[one], PODS[other], port) in apps or not {PODS[one], PODS[other]} & guarded
            shown = (f"shop/app={PODS[one]}", f"shop/app={PODS[other]}", f"tcp/{port}")
            assert (shown not in denied) == allowed, shown
