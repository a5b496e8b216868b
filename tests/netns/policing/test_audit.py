"""The comparison in slices on a real kernel: nothing of our own is a finding, whatever changes between the slices."""

from __future__ import annotations

import random

import pytest

from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import SILENT
from cni_calico.netfilter.tables import FlushChain
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.wanted import Wanted
from tests.deadlines import soon
from tests.netns.namespaces import namespace
from tests.unit.nodeagent.policing.tables.worlds import difference, random_wanted

pytestmark = pytest.mark.netns


def _compare_while_it_changes() -> tuple[int, list[str], str, int]:
    """(comparisons that ended, findings, what tampering is found as, transactions after a look at everything)."""
    rng, wanted = random.Random(5), Wanted()
    with NfTables() as kernel:
        enforcer = Enforcer(kernel, Goal(FilterSettings(spoofing=True)), SILENT)
        audit, findings = enforcer.audit, []
        for _ in range(300):
            after = random_wanted(rng)
            enforcer.goal.update(difference(wanted, after))
            wanted = after
            enforcer.bring_about(soon(10))
            if not audit.is_running:
                audit.begin()
            findings += [found for _ in range(rng.randrange(1, 12)) if (found := audit.step(0.0))]
        while audit.is_running:
            findings += [found] if (found := audit.step()) else []
        enforcer.doubt()
        left = enforcer.bring_about(soon(10))
        kernel.apply([FlushChain(FILTER[4], "from-workloads")], soon(10))
        audit.begin()
        found = ""
        while audit.is_running and not found:
            found = audit.step(0.0)
        return audit.ended, findings, found, left


def test_our_own_changes_are_no_finding() -> None:
    with namespace("audit") as ns:
        ended, findings, tampering, left = ns.call(_compare_while_it_changes)
    assert ended > 3 and findings == [] and left == 0
    assert "from-workloads" in tampering
