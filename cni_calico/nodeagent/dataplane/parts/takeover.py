"""Removes what upstream's agent left in the packet filter: chains, rules in others' chains, IP sets, its ARP table.

Rule: once, and only after our own policies are in force or it is decided that none will be (after_policies.py). It must
happen because upstream's chains outlive its agent and drop what they do not know. A set that another program's rule
uses stays; that is logged once, and retried at every full resync.

It refuses while policies exist that only upstream enforces (``lost``): its chains, which go on denying, stay, and the
node is not ready, so that a rolling update stops here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter import ipsets, iptables
from cni_calico.kernel.filter import nft as nftables
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.forward_rules import (
    UPSTREAM,
    count_upstream_chains,
    plan_takeover,
    select_upstream_sets,
)
from cni_calico.nodeagent.dataplane.masquerade_rules import FAMILY, TABLE
from cni_calico.nodeagent.dataplane.passes import Pass

_ARP_TABLE = ("arp", "calico-arp")
_LOOK_S = 10.0


@dataclass(slots=True)
class Takeover:
    """``lost``: in words, what upstream enforces here and this agent would not.

    ``kept`` says why sets could not be removed; None: not tried yet.
    """

    name = "taking over from upstream's agent"
    log: Log
    lost: Callable[[], Sequence[str]] = tuple
    chains_gone: bool = False
    kept: tuple[str, ...] | None = None

    def wants(self, changed: Collection[str]) -> bool:
        return False

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        """Raises KernelError; the next pass continues what was not finished."""
        if not self.chains_gone:
            lost = () if felix.takeover_without_policies else self.lost()
            if lost and has_upstream_rules(deadline):
                done.refused.append(refusal(lost))
                return
            self._remove_chains(felix, deadline, done)
            self.chains_gone = True
        if self.kept is None or (self.kept and full):
            self._remove_sets(deadline, done)

    @property
    def done(self) -> bool:
        """Whether upstream's chains are gone."""
        return self.chains_gone

    def _remove_chains(self, felix: FelixSettings, deadline: Deadline, done: Pass) -> None:
        for family, variant in iptables.readable_variants():
            saved = iptables.read_rules(family, variant, deadline)
            script = plan_takeover(saved)
            if script:
                iptables.apply_rules(family, variant, script, deadline, lock_s=felix.iptables_lock_s)
                count = count_upstream_chains([saved])
                done.changed.append(f"removed {count} chains of upstream's agent (IPv{family}, {variant})")
        if nftables.has_table(*_ARP_TABLE, deadline):
            table = " ".join(_ARP_TABLE)
            nftables.apply_script(f"add table {table}\ndelete table {table}\n", deadline)
            done.changed.append(f"removed table {table} of upstream's agent")

    def _remove_sets(self, deadline: Deadline, done: Pass) -> None:
        kept, removed = [], 0
        try:
            names = select_upstream_sets(ipsets.read_ipsets(deadline))
        except KernelError as e:
            names, kept = [], [f"{e}; those of upstream's agent may still be there: ipset list -n"]
        for name in names:
            try:
                ipsets.remove_ipset(name, deadline)
                removed += 1
            except KernelError as e:
                kept.append(f"{e}; it is upstream's: ipset destroy {name}")
        if removed:
            done.changed.append(f"removed {removed} IP sets of upstream's agent")
        for text in kept:
            if text not in (self.kept or ()):
                self.log.warning(text)
        self.kept = tuple(kept)


def refusal(lost: Sequence[str]) -> str:
    """The sentence for people."""
    return (
        f"upstream's rules stay, because this agent would not enforce: {'; '.join(lost)}. Workloads that upstream's "
        "agent did not know have no network meanwhile. Start upstream's agent again, or delete these policies and host "
        "endpoints, or set FELIX_TAKEOVERWITHOUTPOLICIES=true to do without them (docs/from-calico.md)"
    )


def has_upstream_rules(deadline: Deadline) -> bool:
    """Whether there are rules by which upstream enforces policies. Raises KernelError."""
    saved = (iptables.read_rules(family, variant, deadline) for family, variant in iptables.readable_variants())
    return any(plan_takeover(each) for each in saved) or has_upstream_table()


def has_upstream_table() -> bool:
    """Whether upstream's chains are in the nftables tables that masquerading takes over. Raises KernelError."""
    deadline = Deadline.after(_LOOK_S)
    if not nftables.usable(deadline):
        return False
    found = (item for family in FAMILY.values() for item in nftables.read_table(family, TABLE, deadline) or ())
    return any(UPSTREAM in item.get("chain", {}).get("name", "") for item in found)
