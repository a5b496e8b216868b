"""``calicoctl policy diff --since``: how often each line was used, against what replay says of the same flows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cni_calico.ctl.main import run
from tests.unit.ctl.policy.shop import PODS, POLICIES, endpoints_file, flow, policy, write, write_flows

Differs = Callable[..., dict[str, Any]]
OPEN = policy("database", "app == 'db'", [("app == 'cache'", ["5430:5440"])])


@pytest.fixture
def differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Differs:
    def do(new: list[Any], flows: list[Any], *options: str, old: Any = None, what: str = "diff") -> Any:
        for name, documents in (("old", POLICIES.values() if old is None else old), ("new", new)):
            (tmp_path / name).mkdir(exist_ok=True)
            write(tmp_path / name / "all.yaml", *documents)
        lines = write_flows(tmp_path / "flows.jsonl", *flows)
        sides = ["--dir", f"{tmp_path}/old", "--with", f"{tmp_path}/new", "--endpoints", endpoints_file(tmp_path)]
        capsys.readouterr()
        run(["policy", what, *sides, "--flows", lines, *options], {})
        return capsys.readouterr().out

    return do


def changes(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["changes"]
    return found


def test_each_line_says_how_often(differs: Differs) -> None:
    flows = [flow("web-1", "db-0", count=1204), flow("web-2", "db-0", count=1), flow("web-1", "db-0", port=80)]
    text = str(differs([OPEN], flows))
    assert "    2 workloads x 1 workload; seen 1205 connections, last 2026-11-26T14:02:11.403+00:00" in text
    assert "    1 workload x 1 workload; not seen" in text
    by_traffic = {one["from"]["names"][0]: one["seen"] for one in changes(str(differs([OPEN], flows, "-o", "json")))}
    assert by_traffic["shop/app=web"]["connections"] == 1205 and by_traffic["shop/app=cache"] == {"connections": 0}


def test_a_connection_that_both_nodes_saw_counts_once(differs: Differs) -> None:
    flows = [flow("web-1", "db-0", count=4, reporter=which) for which in ("src", "dst")]
    assert "; seen 4 connections" in str(differs([OPEN], flows))


def test_what_cannot_be_judged_is_not_unseen(differs: Differs) -> None:
    flows = [flow("gone-7d9-x2k4", "db-0", count=3), {"lost": 2, "why": "too many"}]
    assert "5 recorded connections could not be judged." in str(differs([OPEN], flows))


def test_flows_count_for_the_labels_that_they_tell(differs: Differs) -> None:
    """Of a pod that is gone, or has other labels now; those that nobody has now, and nobody knows, are not judged."""

    def of(name: str, labels: dict[str, str], count: int, **more: Any) -> dict[str, Any]:
        sender = {"kind": "pod", "namespace": "shop", "name": name, "ip": "10.65.0.77", "labels": labels}
        return flow("x", "db-0", sender={**sender, **more}, count=count)

    web = {"app": "web", "projectcalico.org/orchestrator": "k8s"}
    flows = [of("job-1", web, 3), of("cache-0", web, 4), of("web-1", {"app": "cache"}, 50), flow("web-2", "db-0")]
    flows += [of("web-2", {"app": "batch"}, 600), of("web-1", web, 7000, relabelled=True)]
    found = changes(str(differs([OPEN], flows, "-o", "json")))
    assert {one["from"]["names"][0]: one["seen"]["connections"] for one in found} == {
        "shop/app=web": 8,
        "shop/app=cache": 50,
    }
    text = str(differs([OPEN], flows))
    assert "7600 recorded connections could not be judged. 58 do not tell the labels of an end" in text  # of db-0


def test_only_recorders_are_asked_for_a_part(tmp_path: Path, differs: Differs, capsys: Any) -> None:
    """A file's flows all count: what chooses among them is refused, and so is what would choose among nothing."""
    differs([OPEN], [])
    sides = ["--dir", f"{tmp_path}/old", "--with", f"{tmp_path}/new", "--endpoints", endpoints_file(tmp_path)]
    flows = ["--flows", f"{tmp_path}/flows.jsonl"]
    for what, change in (("diff", sides), ("replay", sides), ("recommend", [*sides[:2], *sides[4:]])):
        for words in (["--since", "1h"], ["--since", "0s"], ["--host"], ["--node", "n1"]):
            assert run(["policy", what, *change, *flows, *words], {}) == 2
            out, err = capsys.readouterr()
            assert out == "" and f"{words[0]} and --flows do not go together" in err and "when it is written" in err
    assert run(["policy", "diff", *sides, "--node", "n1"], {}) == 2
    assert "--host and --node say whose recorders are asked, for --since" in capsys.readouterr().err


def test_addresses_outside_and_protocols_that_no_rule_names(differs: Differs) -> None:
    ping = flow("web-1", "db-0", sender={"kind": "address", "ip": "192.0.2.9"}, to={"ip": "10.65.0.3"})
    del ping["destination"]["port"]
    gre = {**ping, "protocol": "47"}
    sets = policy("database", "app == 'db'", [])
    sets["spec"]["ingress"] = [{"action": "Allow", "source": {"nets": ["192.0.2.0/24"]}}]
    text = str(differs([sets], [gre, {**ping, "protocol": "icmp", "icmp": {"type": 8, "code": 0}}], "-o", "json"))
    (row,) = (one for one in changes(text) if one["from"]["names"] == ["192.0.2.0/24"])
    assert row["seen"]["connections"] == 2


def test_no_recorder_is_asked_without_need(tmp_path: Path, differs: Differs, capsys: Any) -> None:
    differs([OPEN], [])
    sides = ["--dir", f"{tmp_path}/old", "--with", f"{tmp_path}/new", "--endpoints", endpoints_file(tmp_path)]
    assert run(["policy", "diff", *sides], {"CALICO_RUN_DIR": str(tmp_path)}) == 1
    assert "seen" not in capsys.readouterr().out
    assert run(["policy", "diff", *sides, "--since", "1h"], {"CALICO_RUN_DIR": str(tmp_path)}) == 2


def test_what_replay_says_to_change_is_seen_in_a_line(differs: Differs) -> None:
    random, pods = Random(36), list(PODS)
    apps = sorted(set(PODS.values()))

    def made() -> list[Any]:
        return [
            policy(
                f"p{number}",
                f"app == '{random.choice(apps)}'",
                [(f"app == '{random.choice(apps)}'", [random.randrange(80, 84)]) for _ in range(2)],
                types=(random.choice(("Ingress", "Egress")),),
                action=random.choice(("Allow", "Allow", "Deny")),
                order=number,
            )
            for number in range(2)
        ]

    seen = 0
    for _ in range(15):
        old, new, (one, other) = made(), made(), random.sample(pods, 2)
        flows = [flow(one, other, port=random.randrange(80, 84))]
        for verdict in ("allowed", "denied"):  # one of them is what was recorded
            flows[0]["verdict"] = verdict
            replayed = json.loads(str(differs(new, flows, "--any", "-o", "json", old=old, what="replay")))
            if not replayed["changedSince"]:
                break
        rows = [row for row in changes(str(differs(new, flows, "-o", "json", old=old))) if row["seen"]["connections"]]
        if replayed["changes"]:
            assert rows
            seen += 1
        elif not rows:
            continue
        assert {row["direction"] for row in rows} <= {"ingress", "egress"} and len(rows) <= 2
    assert seen
