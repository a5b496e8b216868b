"""A restart with the rules in the kernel and nothing changed changes nothing there, however many policies there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.legacy.filter import LegacyFilter
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.netfilter.tables import Operation
from cni_calico.nodeagent.policing.feed import starting
from cni_calico.nodeagent.policing.tables.parts import LARGE_RULES
from tests.deadlines import soon, until
from tests.netns.policing.lab import Lab
from tests.netns.policing.tenants import document, endpoint, selector_policy, two_pods

pytestmark = pytest.mark.netns

SELECTORS = 2 * LARGE_RULES + 100
SAID = "1 large policies of namespace t1 are still being made ready"


def small(number: int) -> Write:
    rules = [
        {
            "action": "Allow",
            "protocol": "UDP",
            "source": {"selector": f"app == '{'ab'[number % 2]}' || app == 'v{number % 50}'"},
            "destination": {"ports": [1000 + number]},
        }
    ]
    spec = {"tier": "default", "order": number, "selector": "app == 'b'", "types": ["Ingress"], "ingress": rules}
    return document("NetworkPolicy", f"p{number}", "default", spec)


def note_changes(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """A line for each change that an engine gives a packet filter."""
    for filter_class in (NfTables, LegacyFilter):

        def noted(of: Any, real: Any, operations: Sequence[Operation], deadline: Deadline) -> None:
            with file.open("a") as changes:
                changes.write(json.dumps(list(map(repr, operations)))[:500] + "\n")
            real(of, operations, deadline)

        monkeypatch.setattr(filter_class, "apply", partialmethod(noted, filter_class.apply))


def start(made: Lab, mode: str, policies: int) -> None:
    """Until all policies are in force, and none has a stand-in."""
    made.start(FELIX_NFTABLESMODE=mode)

    def reached() -> bool:
        said = made.standing()
        ready = said.get("in_force") and said["counts"]["policies"] == policies and not said["failing"]
        return bool(ready) and not any(SAID in one for one in said["problems"])

    try:
        until(reached, "all policies in force", 120)
    except AssertionError as e:
        raise AssertionError(f"{e}: {made.standing()}\n{made.log()}") from None


def generation(made: Lab) -> int:
    def read() -> int:
        with NfTables() as kernel:
            return kernel.generation(soon())

    found: int = made.host.call(read)
    return found


@pytest.mark.parametrize("mode", ["Enabled", "Disabled"])
@pytest.mark.parametrize("policies", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, policies: int) -> None:
    """Also where a large policy has to wait for its turn: its rules stay until then, and are the same afterwards."""
    changes = tmp_path / "changes"
    note_changes(monkeypatch, changes)
    with two_pods(tmp_path) as made:
        made.write([endpoint(1), selector_policy(1, SELECTORS)])
        for at in range(0, policies, 50):
            made.write([small(number) for number in range(at, at + 50)])
        start(made, mode, policies + 2)
        assert changes.read_text()
        for selectors in (SELECTORS, SELECTORS - 1):
            monkeypatch.setattr(starting, "START_SELECTORS", selectors)
            assert made.stop() == 0
            changes.write_text("")
            before = generation(made)
            start(made, mode, policies + 2)
            assert made.stop() == 0
            assert changes.read_text() == "" and generation(made) == before
        assert (SAID in made.log()) == (mode == "Enabled")  # iptables does not say which rules are whose
