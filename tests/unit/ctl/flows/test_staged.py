"""What nodes say of staged policies: checked, joined, and in words."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cni_calico.ctl.flows.show import row_of
from cni_calico.ctl.flows.staged import StagedSummary, describe_staged, join_staged
from cni_calico.flows.told import require_staged
from tests.conftest import ROOT


def staged(verdict: str, *, changes: bool = False, said: str = "x", policies: Any = ()) -> dict[str, Any]:
    decided = [{"said": said, "action": "Deny" if verdict == "denied" else "Allow"}]
    return {"verdict": verdict, "changes": changes, "decided": decided, "policies": list(policies)}


UNKNOWN: dict[str, Any] = {"verdict": "unknown", "decided": []}


@pytest.mark.parametrize(
    ("sides", "verdict", "changes"),
    [
        ((staged("allowed"), staged("allowed")), "allowed", False),
        ((staged("denied", changes=True), staged("allowed")), "denied", True),
        ((staged("allowed"), staged("allowed", changes=True)), "allowed", True),  # it was denied there
        ((staged("denied"), staged("allowed", changes=True)), "denied", False),  # denied for another reason
        ((None, staged("denied", changes=True)), "denied", True),
        ((staged("allowed", changes=True), UNKNOWN), "unknown", None),
    ],
)
def test_both_sides_make_one(sides: tuple[Any, Any], verdict: str, changes: bool | None) -> None:
    found = join_staged(*sides)
    assert found is not None and (found["verdict"], found.get("changes")) == (verdict, changes)


def test_nothing_is_joined_of_nothing() -> None:
    assert join_staged(None, None) is None


@pytest.mark.parametrize(
    "found",
    [
        [],
        {},
        {"verdict": "perhaps", "changes": True, "decided": []},
        {"verdict": "allowed", "changes": "yes", "decided": []},
        {"verdict": "allowed", "changes": True, "decided": [{"said": 1, "action": "Allow"}]},
        {"verdict": "allowed", "changes": True, "decided": [], "policies": [{"policy": "p", "result": "explode"}]},
    ],
)
def test_another_form_is_refused(found: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        require_staged(found)
    require_staged(staged("allowed", policies=[{"policy": "p", "result": "allow"}]))
    require_staged(None)


def test_only_what_would_change_is_in_a_line() -> None:
    assert describe_staged({}) == describe_staged({"staged": staged("denied")}) == ""
    assert describe_staged({"staged": staged("denied", changes=True, said="ingress: staged p rule 0")}) == (
        "staged: DENIED ingress: staged p rule 0"
    )
    assert describe_staged({"staged": UNKNOWN}) == "staged: unknown"


def test_what_each_policy_would_do() -> None:
    summary = StagedSummary()
    results = [{"policy": "p", "result": result} for result in ("deny", "changed", "deny")]
    summary.add({"connections": 5, "staged": staged("denied", changes=True, policies=results)})
    summary.add({"connections": 2, "staged": staged("allowed", policies=[{"policy": "p", "result": "allow"}])})
    summary.add({"connections": 3, "staged": UNKNOWN})
    summary.add({"connections": 3})
    assert list(summary.lines()) == [
        "p would decide: 2 allowed, 5 denied, 5 changed",
        "of 3 connections it is unknown what would be decided",
    ]


def test_the_documented_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of docs/flows.md are what these flows look like."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    text = (ROOT / "docs" / "flows.md").read_text()
    begin = text.index("    $ calicoctl flows --staged changed --since 1h --aggregate\n")
    lines = [line.removeprefix("    ") for line in text[begin:].split("\n\n", 1)[0].splitlines()[1:]]
    said = "ingress: end of tier default (policies: staged shop/close-db)"
    policies = [{"policy": "StagedNetworkPolicy shop/close-db", "result": result} for result in ("deny", "changed")]
    document: dict[str, Any] = {
        "last": "2026-11-26T14:02:11.403+00:00",
        "source": {"kind": "pod", "namespace": "shop", "name": "web-7d9-x2k4", "ip": "10.65.0.1"},
        "destination": {"kind": "pod", "namespace": "shop", "name": "db-0", "ip": "10.65.0.3", "port": 5432},
        "protocol": "tcp",
        "verdict": "allowed",
        "connections": 1204,
        "decided": [{"said": "ingress: profile kns.shop rule 0"}],
        "staged": staged("denied", changes=True, said=said, policies=policies),
    }
    summary = StagedSummary()
    summary.add(document)
    row = row_of(document)
    monkeypatch.undo()
    time.tzset()
    assert lines[1].split() == " ".join(row).split()
    assert [line.strip() for line in lines[3:]] == list(summary.lines())
