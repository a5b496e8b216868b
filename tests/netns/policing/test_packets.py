"""What tests/bench/policy/packets.py and tests/bench/flows/changing.py measure is there: each change in force, and
upstream's rules as many as they say.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.bench.flows import changing
from tests.bench.policy import upstream_rules
from tests.bench.policy.packets import by_nft, changes, node

pytestmark = [
    pytest.mark.netns,
    pytest.mark.never_excused,
    pytest.mark.unrecorded("one engine does not record, and the other one has a recorder that judges each record"),
]


@pytest.mark.parametrize("recorded", [False, True])
def test_two_rounds_of_changes_under_traffic(recorded: bool) -> None:
    counts, times, said = changes(16, recorded=recorded)
    assert len(times) == 16 and counts.sent > 0
    assert (counts.allowed_arrived, counts.forbidden_arrived) == (counts.sent, 0)
    if recorded:
        assert min(said["allowed"], said["denied"]) >= counts.sent  # and what tells that a change is in force
    assert said["lost"] == said["disagreed"] == said["unknown"] == 0


def test_each_record_names_a_rule_that_stood_when_its_packet_was_sent(capsys: pytest.CaptureFixture[str]) -> None:
    """As tests/bench/flows/changing.py says it of a thousand changes at 10,000 connections a second."""
    assert changing.main(8, 500) == 0, capsys.readouterr().out


def test_upstreams_rules_for_many_policies() -> None:
    """Only the last rule of the last policy lets a packet through, so it has passed all others."""
    with ExitStack() as stack:
        made = node(stack)
        by_nft(made)
        assert made.passes("probing", "probed", 80)
        listed = made.host.run("nft", "list", "table", "ip", "calico").stdout
        asked = [line for line in listed.splitlines() if "@cali40s-none" in line]
        assert len(asked) == upstream_rules.POLICIES * upstream_rules.RULES
        last = f"filter-cali-pi-bench{upstream_rules.POLICIES - 1}"
        made.host.run("nft", "flush", "chain", "ip", "calico", last)
        assert not made.passes("probing", "probed", 80)
