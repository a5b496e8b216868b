"""Flows as a file of expectations: it holds by the policies that decided, and not by others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.ctl.flows import show as shows
from cni_calico.ctl.flows.expected import ExpectedFlows
from cni_calico.ctl.main import run
from tests.conftest import ROOT
from tests.unit.ctl.policy.shop import POLICIES, endpoints_file, flow, policy, write

LABELS = {"web-1": {"app": "web"}, "web-2": {"app": "web"}, "db-0": {"app": "db"}, "cache-0": {"app": "cache"}}


def recorded(*words: Any, **more: Any) -> dict[str, Any]:
    """With the labels that a recorder tells, and what calicoctl shows besides."""
    found: dict[str, Any] = flow(*words, **more)
    found |= {"ended": True, "how": "kernel", "packets": None, "bytes": None}
    for side in ("source", "destination"):
        end = found[side]
        if end.get("name") in LABELS:
            end["labels"] = {**LABELS[end["name"]], "projectcalico.org/namespace": "shop"}
        end.setdefault("kind", "address")
    found["decided"] = [{**one, "said": "ingress: rule 1"} for one in found["decided"]]
    return found


FLOWS = [
    recorded("web-1", "db-0", count=3),
    recorded("web-2", "db-0"),
    recorded("cache-0", "db-0", verdict="denied"),
    recorded("x", "db-0", verdict="denied", sender={"ip": "192.0.2.1"}),
]


class _Place:
    def __init__(self, flows: list[dict[str, Any]]) -> None:
        self.flows = flows

    def ask(self, *_: object) -> list[dict[str, Any]]:
        return [*self.flows, {"end": True}]


def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flows: list[dict[str, Any]]) -> tuple[int, Path]:
    """What ``calicoctl flows`` makes of what recorders answer."""
    file = tmp_path / "expected.yaml"
    monkeypatch.setattr(shows, "open_place", lambda arguments, environ: _Place(flows))
    return run(["flows", "--aggregate", "--expectations", str(file)], {}), file


def test_it_holds_by_the_policies_that_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jsonschema import Draft202012Validator  # a second of the processor, for whoever collects the tests

    code, file = written(tmp_path, monkeypatch, FLOWS)
    assert code == 0 and "3 expectations are in" in capsys.readouterr().err
    document = yaml.safe_load(file.read_text())
    Draft202012Validator(json.loads((ROOT / "docs" / "expectations.schema.json").read_text())).validate(document)
    assert [one["expect"] for one in document["expectations"]] == ["denied", "denied", "allowed"]
    assert document["expectations"][2]["from"] == {"namespace": "shop", "labels": {"app": "web"}}
    for rules, status in ((POLICIES["database"], 0), (policy("database", "app == 'db'", []), 1)):
        policies, pods = write(tmp_path / "policies.yaml", rules), endpoints_file(tmp_path)
        assert run(["policy", "test", str(file), "--with", policies, "--alone", "--endpoints", pods], {}) == status


def test_what_cannot_be_expected_is_counted() -> None:
    expected = ExpectedFlows()
    both = [recorded("web-1", "db-0", count=2), recorded("web-2", "db-0", verdict="denied")]
    folded = recorded("x", "db-0", count=5, sender={"kind": "network", "name": "192.0.2.0/24"})
    forged = recorded("web-1", "db-0", port=80, count=7, decided=[{"action": "Deny", "reason": "spoofed"}])
    for one in (*both, folded, forged, recorded("web-1", "cache-0", port=6379)):
        expected.add(one)
    (only,) = expected.document()["expectations"]
    assert (only["port"], only["expect"]) == (6379, "allowed")
    assert dict(expected.left_out) == {
        "allowed and denied, in different flows": 3,
        "addresses that are recorded as a network or a network set": 5,
        "not decided by a policy": 7,
    }


def test_labels_that_others_have_too_do_not_stand_for_a_pod() -> None:
    expected, more = ExpectedFlows(), recorded("web-2", "db-0", port=80)
    more["source"]["labels"] |= {"tier": "new"}
    ping = {**recorded("web-1", "db-0"), "protocol": "icmp", "icmp": {"type": 8, "code": 0}}
    for one in (recorded("web-1", "db-0"), more, ping, {**recorded("web-1", "db-0"), "protocol": "47"}):
        expected.add(one)
    found = {one.get("port", one["protocol"]): one for one in expected.document()["expectations"]}
    assert found[5432]["from"] == "shop/web-1"
    assert found[80]["from"] == {"namespace": "shop", "labels": {"app": "web", "tier": "new"}}
    assert found["ICMP"]["icmp"] == {"type": 8, "code": 0} and 47 in found


def test_nothing_to_expect_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, file = written(tmp_path, monkeypatch, [])
    assert code == 1 and not file.exists() and "none of these flows" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(tmp_path / "absent", monkeypatch, FLOWS)[0] == 1
    assert "cannot write" in capsys.readouterr().err
