"""Packet filter rules carried out: masquerading, forwarding for workloads, upstream's leftovers.

Rule: masquerading is done by nftables where the kernel has it, else by legacy iptables; never by both. What was applied
is read back once and compared with later readings, because programs print rules in their own words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter import iptables, nftables
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired, Nat
from cni_calico.nodeagent.dataplane.forward_rules import plan_forward
from cni_calico.nodeagent.dataplane.masquerade_rules import (
    CHAIN,
    FAMILY,
    TABLE,
    render_iptables,
    render_iptables_removal,
    render_nftables,
    select_own,
)
from cni_calico.nodeagent.dataplane.parts.takeover import Takeover, variants

if TYPE_CHECKING:
    from cni_calico.nodeagent.dataplane.passes import Pass


@dataclass(slots=True)
class Rules:
    """``applied`` and ``seen``: what was asked for, and how it read right after; by family.

    ``suspect``: somebody has touched our table (ourselves, maybe).
    """

    log: Log
    by_nftables: bool | None = None
    applied: dict[int, tuple[str, Nat]] = field(default_factory=dict)
    seen: dict[int, Any] = field(default_factory=dict)
    forward: tuple[str, ...] | None = None
    suspect: bool = False
    takeover: Takeover = field(init=False)

    def __post_init__(self) -> None:
        self.takeover = Takeover(self.log)

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, *, full: bool) -> None:
        """Every part by itself; what fails is told in ``done`` and tried again in the next pass."""
        parts: list[tuple[str, Callable[[], None]]] = [
            ("take over from upstream's agent", lambda: self.takeover.apply(deadline, done, full=full)),
            ("choose who masquerades", lambda: self._choose(felix, deadline)),
        ]
        look, self.suspect = full or self.suspect, False
        for nat in desired.nat:
            parts.append((f"masquerade IPv{nat.family}", self._nat_part(nat, felix, deadline, done, full=look)))
        if full or self.forward != desired.forward_prefixes:
            parts.append(("accept forwarding", lambda: self._apply_forward(desired, deadline, done)))
        for what, part in parts:
            try:
                part()
            except KernelError as e:
                done.failed.append(f"cannot {what}: {e}")

    def _nat_part(
        self, nat: Nat, felix: FelixSettings, deadline: Deadline, done: Pass, *, full: bool
    ) -> Callable[[], None]:
        return lambda: self._apply_nat(nat, felix, deadline, done, full=full)

    def _choose(self, felix: FelixSettings, deadline: Deadline) -> None:
        wanted = self.by_nftables
        if felix.iptables_backend == "legacy" and felix.nftables_mode != "Enabled":
            wanted = False
        elif not wanted:
            wanted = nftables.usable(deadline)
        if wanted != self.by_nftables:
            self.by_nftables = wanted
            self.applied.clear()
            self.log.info(f"masquerading is done with {'nftables' if wanted else 'legacy iptables'}")
            self._remove_others(deadline)

    def _remove_others(self, deadline: Deadline) -> None:
        """What we did the other way before."""
        for family in (4, 6):
            if not self.by_nftables:
                if nftables.read_table(FAMILY[family], TABLE, deadline) is not None:
                    nftables.apply_script(render_nftables(Nat(family)), deadline)
            elif iptables.in_use(family, "legacy"):
                script = render_iptables_removal(iptables.read_rules(family, "legacy", deadline))
                if script:
                    iptables.apply_rules(family, "legacy", script, deadline)

    # -- masquerading -------------------------------------------------------------------------------------------------

    def _apply_nat(self, nat: Nat, felix: FelixSettings, deadline: Deadline, done: Pass, *, full: bool) -> None:
        key = ("nft" if self.by_nftables else felix.chain_insert_mode, nat)
        same = self.applied.get(nat.family) == key
        if same and not full:
            return
        if same and self._read(nat, deadline) == self.seen.get(nat.family):
            return
        self.applied.pop(nat.family, None)
        if nat.partial and _has_rules(there := self._read(nat, deadline)):
            self.applied[nat.family], self.seen[nat.family] = key, there
            return  # what we cannot read may be why they are as they are
        if self.by_nftables:
            nftables.apply_script(render_nftables(nat), deadline)
        else:
            self._apply_legacy(nat, felix, deadline)
        self.applied[nat.family] = key
        self.seen[nat.family] = self._read(nat, deadline)
        if same or nat.sources:
            verb = "repaired" if same else "set"
            done.changed.append(
                f"{verb} masquerading for IPv{nat.family}: {', '.join(map(str, nat.sources)) or 'none'}"
            )

    def _read(self, nat: Nat, deadline: Deadline) -> Any:
        if self.by_nftables:
            return nftables.read_table(FAMILY[nat.family], TABLE, deadline)
        if not iptables.in_use(nat.family, "legacy"):
            return []
        return select_own(iptables.read_rules(nat.family, "legacy", deadline))

    def _apply_legacy(self, nat: Nat, felix: FelixSettings, deadline: Deadline) -> None:
        in_use = iptables.in_use(nat.family, "legacy")
        saved = iptables.read_rules(nat.family, "legacy", deadline) if in_use else ""
        if nat.sources:
            jump = f"-A POSTROUTING -j {CHAIN}" in saved.splitlines()
            script = render_iptables(nat, jump, felix.chain_insert_mode == "insert")
        else:
            script = render_iptables_removal(saved)
        if script:
            iptables.apply_rules(nat.family, "legacy", script, deadline)

    # -- others' rules ------------------------------------------------------------------------------------------------

    def _apply_forward(self, desired: Desired, deadline: Deadline, done: Pass) -> None:
        for family, variant in variants():
            saved = iptables.read_rules(family, variant, deadline)
            script = plan_forward(saved, desired.forward_prefixes)
            if script:
                iptables.apply_rules(family, variant, script, deadline)
                done.changed.append(f"accepted forwarding for workloads (IPv{family}, {variant})")
        self.forward = desired.forward_prefixes


def _has_rules(found: Any) -> bool:
    """Of what ``Rules._read`` gives: nft's items, or iptables-save's lines."""
    return any("rule" in item if isinstance(item, dict) else item.startswith("-A ") for item in found or ())
