"""The list of parts: one that fails keeps no other from its work, and compares everything the next time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.files import Files
from cni_calico.kernel.filter import nft as nftables
from cni_calico.kernel.monitor import NEIGHBOURS, RULES, SETTINGS
from cni_calico.log import SILENT
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.apply import Applier, data_plane
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.parts.masquerade import Masquerade
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.unit.nodeagent.fabric import FELIX


class Recorded:
    """A part that remembers whether it was asked to look at everything, and fails when told to."""

    def __init__(self, name: str, concern: str = "", failures: Iterable[Exception | None] = ()) -> None:
        self.name = name
        self.asked: list[bool] = []
        self._concern = concern
        self._failures = iter(failures)

    def wants(self, changed: Collection[str]) -> bool:
        return self._concern in changed

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        self.asked.append(full)
        failure = next(self._failures, None)
        if failure is not None:
            raise failure


def passes(applier: Applier, count: int) -> list[Pass]:
    return [applier.apply(Desired(), FELIX, Deadline.after(5), full=False) for _ in range(count)]


@pytest.mark.parametrize("failure", [KernelError("no"), OSError("no")])
def test_a_part_that_fails_keeps_no_other_from_its_work(failure: Exception) -> None:
    broken, sound = Recorded("first", failures=(None, failure)), Recorded("second")
    done = passes(Applier([broken, sound]), 4)
    assert [one.failed for one in done] == [[], ["first: no"], [], []]
    assert broken.asked == [True, False, True, False]  # what it knew may be wrong after the failure
    assert sound.asked == [True, False, False, False]


def test_a_part_looks_again_at_what_the_monitor_reports() -> None:
    rules, settings = Recorded("rules", RULES), Recorded("settings", SETTINGS)
    applier = Applier([rules, settings])
    passes(applier, 2)
    applier.notice({RULES})
    applier.notice(())
    passes(applier, 2)
    assert rules.asked == [True, False, True, False] and settings.asked == [True, False, False, False]


def test_a_way_to_wireguard_is_before_the_plain_one_and_after_it() -> None:
    names = [part.name for part in data_plane(SILENT, Files(), "/nowhere", "/nowhere", lambda: 0.0)]
    at = names.index("routes")
    assert names[at - 1 : at + 2] == ["encryption", "routes", "encryption after the routes"]


def test_everything_that_the_monitor_reports_is_some_parts_concern() -> None:
    parts = data_plane(SILENT, Files(), "/nowhere", "/nowhere", lambda: 0.0)
    assert {kind: [part.name for part in parts if part.wants({kind})] for kind in (SETTINGS, NEIGHBOURS, RULES)} == {
        SETTINGS: ["settings"],
        NEIGHBOURS: ["neighbours"],
        RULES: ["the guard of encryption", "floating IPs", "masquerading"],
    }
    assert len({part.name for part in parts}) == len(parts)


@pytest.mark.parametrize("chain", ["filter-cali-FORWARD", "nat-outgoing"])
def test_masquerading_waits_for_policies_only_while_upstreams_chains_are_there(
    chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them a node whose policies cannot be enforced masquerades all the same."""
    listed = [{"table": {"name": "calico"}}, {"chain": {"family": "ip", "table": "calico", "name": chain}}]
    monkeypatch.setattr(nftables, "usable", lambda deadline: True)
    monkeypatch.setattr(Masquerade, "apply", lambda *_: None)  # not on the machine that runs this
    monkeypatch.setattr(nftables, "read_table", lambda family, name, deadline: listed if family == "ip" else None)
    waiting = data_plane(SILENT, Files(), "/nowhere", "/nowhere", lambda: 0.0, lambda: False)
    parts = [part for part in waiting if part.name in ("masquerading", "taking over from upstream's agent")]
    done = Applier(parts).apply(Desired(), FELIX, Deadline.after(5), full=False)
    assert (done.pending, done.failed) == (2 if "cali-" in chain else 1, [])
