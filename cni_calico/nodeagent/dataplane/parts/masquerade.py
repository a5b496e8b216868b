"""Masquerading: with nftables if the kernel has it, else with legacy iptables, never with both.

Rule: what was applied is read back once and compared with later readings, because programs print rules in their own
wording. Reading costs processes: it happens when the wanted rules change, when the kernel reports that our table was
changed, and at a full resync.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter import iptables
from cni_calico.kernel.filter import nft as nftables
from cni_calico.kernel.monitor import RULES
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired, Nat
from cni_calico.nodeagent.dataplane.masquerade_rules import (
    CHAIN,
    FAMILY,
    TABLE,
    render_iptables,
    render_iptables_removal,
    render_nftables,
    select_own,
)
from cni_calico.nodeagent.dataplane.needs import MASQUERADE
from cni_calico.nodeagent.dataplane.passes import Pass


class Masquerader(Protocol):
    """One way of masquerading. ``variant`` is what the rules depend on besides the Nat."""

    @property
    def called(self) -> str: ...

    @property
    def variant(self) -> str: ...

    def read(self, family: int, deadline: Deadline) -> Any:
        """Our rules of a family in a form that can be compared."""

    def has_rules(self, found: Any) -> bool:
        """Whether a result of ``read`` has any rules."""

    def apply(self, nat: Nat, deadline: Deadline) -> None: ...

    def remove(self, family: int, deadline: Deadline) -> None: ...


class NftablesMasquerade:
    called = "nftables"
    variant = "nft"

    def read(self, family: int, deadline: Deadline) -> Any:
        return nftables.read_table(FAMILY[family], TABLE, deadline)

    def has_rules(self, found: Any) -> bool:
        return any("rule" in item for item in found or ())

    def apply(self, nat: Nat, deadline: Deadline) -> None:
        nftables.apply_script(render_nftables(nat), deadline)

    def remove(self, family: int, deadline: Deadline) -> None:
        if self.read(family, deadline) is not None:
            self.apply(Nat(family), deadline)


class LegacyMasquerade:
    called = "legacy iptables"

    def __init__(self, variant: str = "insert", lock_s: float = iptables.LOCK_S) -> None:
        self.variant = variant  # where the jump to our chain goes: insert or append
        self._lock_s = lock_s

    def read(self, family: int, deadline: Deadline) -> Any:
        return select_own(self._saved(family, deadline))

    def has_rules(self, found: Any) -> bool:
        return any(line.startswith("-A ") for line in found)

    def apply(self, nat: Nat, deadline: Deadline) -> None:
        if not nat.sources:
            self.remove(nat.family, deadline)
            return
        jump = f"-A POSTROUTING -j {CHAIN}" in self._saved(nat.family, deadline).splitlines()
        script = render_iptables(nat, jump, self.variant == "insert")
        iptables.apply_rules(nat.family, "legacy", script, deadline, lock_s=self._lock_s)

    def remove(self, family: int, deadline: Deadline) -> None:
        script = render_iptables_removal(self._saved(family, deadline))
        if script:
            iptables.apply_rules(family, "legacy", script, deadline, lock_s=self._lock_s)

    def _saved(self, family: int, deadline: Deadline) -> str:
        return iptables.read_rules(family, "legacy", deadline) if iptables.in_use(family, "legacy") else ""


def _legacy(felix: FelixSettings) -> LegacyMasquerade:
    return LegacyMasquerade(felix.chain_insert_mode, felix.iptables_lock_s)


class Masquerade:
    """``_applied`` and ``_seen``: what was requested, and how it read right afterwards; by family."""

    name = "masquerading"

    def __init__(self, log: Log) -> None:
        self._log = log
        self._by: Masquerader | None = None
        self._applied: dict[int, tuple[str, Nat]] = {}
        self._seen: dict[int, Any] = {}

    def wants(self, changed: Collection[str]) -> bool:
        return RULES in changed

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        by = self._choose(felix, deadline)
        for nat in desired.nat:
            try:
                self._keep(by, nat, deadline, done, full)
            except KernelError as e:
                done.failed.append(f"cannot masquerade IPv{nat.family}: {e}")
                self._applied.pop(nat.family, None)
                if nat.sources and nat.family not in self._seen:  # what was applied before is still there
                    done.lacking[MASQUERADE[nat.family]] = str(e)

    def _choose(self, felix: FelixSettings, deadline: Deadline) -> Masquerader:
        """Decided once, unless the parameters ask for iptables; the other way's rules are removed."""
        before = self._by
        legacy = felix.iptables_backend == "legacy" and felix.nftables_mode != "Enabled"
        # as for policies: Disabled where there is no legacy iptables is nftables all the same
        legacy = legacy or (felix.nftables_mode == "Disabled" and iptables.is_installed(4, "legacy"))
        if before is not None and before.called == NftablesMasquerade.called and not legacy:
            return before
        by_nftables = not legacy and nftables.usable(deadline)
        by = self._by = NftablesMasquerade() if by_nftables else _legacy(felix)
        if before is None or before.called != by.called:
            self._applied.clear()
            self._seen.clear()
            self._log.info(f"masquerading is done with {by.called}")
            other: Masquerader = LegacyMasquerade() if by_nftables else NftablesMasquerade()
            for family in (4, 6):
                other.remove(family, deadline)
        return by

    def _keep(self, by: Masquerader, nat: Nat, deadline: Deadline, done: Pass, full: bool) -> None:
        key = (by.variant, nat)
        same = self._applied.get(nat.family) == key
        if same and (not full or by.read(nat.family, deadline) == self._seen.get(nat.family)):
            return
        self._applied.pop(nat.family, None)
        if nat.partial and by.has_rules(there := by.read(nat.family, deadline)):
            self._applied[nat.family], self._seen[nat.family] = key, there
            return  # what we cannot read may be the reason for the present rules
        if nat.sources:
            by.apply(nat, deadline)
        else:  # where there is nothing, nothing is changed
            by.remove(nat.family, deadline)
        self._applied[nat.family] = key
        self._seen[nat.family] = by.read(nat.family, deadline)
        if same or nat.sources:
            verb = "repaired" if same else "set"
            done.changed.append(
                f"{verb} masquerading for IPv{nat.family}: {', '.join(map(str, nat.sources)) or 'none'}"
            )
