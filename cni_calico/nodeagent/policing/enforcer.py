"""Puts the goal into force: transactions in three phases, and what happens if one fails.

Rule: the last goal that could be applied is in force; a failed change never opens anything. After a failure, or if
another program changed our tables, they are read back and compared before anything else is done.

A refused transaction is tried once more, based on what is really there. If it is refused again because of a policy's
rules, that policy denies instead (Goal.give_up) and is reported. If it is refused because of something that policies do
not need, that is left out (Goal.lack), with every policy in force already. For any other reason RulesRefused goes to
the caller, which tries again later.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from errno import EAGAIN, EINTR, ENOBUFS, ENOMEM, EPERM

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, RulesRefused, RulesUnknown
from cni_calico.kernel.netlink.nftables import PacketFilter
from cni_calico.log import Log
from cni_calico.model.netfilter import AddChain, AddRules, DropTable, NftTable, Operation, TableId
from cni_calico.nodeagent.dataplane.policy.delta import Phases, follow, plan_table
from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.dataplane.policy.naming import policy_chain
from cni_calico.nodeagent.dataplane.policy.optional import OptionalFeature, Transaction, refused_feature, transactions
from cni_calico.nodeagent.dataplane.policy.tables import ARP, TABLES
from cni_calico.nodeagent.policing.audit import Audit
from cni_calico.nodeagent.status.policing import PolicyFigures
from cni_calico.policy.wanted import PolicyId

_TRANSIENT = (0, ENOMEM, ENOBUFS, EAGAIN, EINTR, EPERM)  # refused, but not because of what was requested
_ATTEMPTS = 50  # one for each policy that turns out to be impossible, and a few more


class Enforcer:
    """For one thread, whose network namespace ``kernel`` works in. ``held``: what its tables hold, as far as known."""

    def __init__(
        self,
        kernel: PacketFilter,
        goal: Goal,
        log: Log,
        figures: PolicyFigures | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.goal = goal
        self.figures = figures or PolicyFigures()
        self.held: dict[TableId, NftTable] = {}
        self._kernel = kernel
        self._log = log
        self._clock = clock
        self._read = False  # whether ``held`` was ever read
        self._doubted = True  # whether it has to be read again
        self.audit = Audit(kernel.reader, lambda: self.held)

    @property
    def is_there(self) -> bool:
        """Whether any of our tables is in the kernel, as far as known."""
        return bool(self.held)

    def doubt(self) -> None:
        """Another program may have changed our tables: read them before the next change."""
        self._doubted = True

    def compare_on(self) -> str:
        """Continue the full comparison that is under way; returns the difference found. Raises KernelError.

        The next ``bring_about`` repairs it.
        """
        found = self.audit.step()
        if found:
            self._doubted = True
        return found

    def read(self, deadline: Deadline) -> None:
        """Raises KernelError."""
        self.audit.give_up()
        held = {}
        for table in TABLES:
            try:
                found = self._kernel.read_table(table, deadline)
            except KernelError as e:
                if table != ARP or e.errno in _TRANSIENT:
                    raise
                self.goal.lack(OptionalFeature.ARP_ANSWERS, str(e))
                continue
            if found is not None:
                held[table] = found
        self.held, self._read, self._doubted = held, True, False

    def bring_about(self, deadline: Deadline) -> int:
        """Make the kernel hold the goal; returns the number of transactions needed.

        Raises RulesRefused, RulesUnknown, KernelError, DeadlineExceeded: the goal is not, or not certainly, in force.
        """
        begun = self._clock()
        suspects: Counter[PolicyId | OptionalFeature] = Counter()
        for attempt in range(_ATTEMPTS):
            phases = self._plan(deadline)
            if not phases:
                return 0 if attempt == 0 else 1
            done = 0
            try:
                for transaction in transactions(phases):
                    self._apply(transaction[1], deadline)
                    done += 1
            except RulesUnknown:
                self._doubted = True
                if attempt:
                    raise
                continue
            except RulesRefused as e:
                self._doubted = True
                self.figures.refused += 1
                if not self._find_fault(e, transaction, suspects) and attempt:
                    raise
                continue
            self.figures.apply.observe(self._clock() - begun)
            return done
        raise RulesRefused(f"cannot bring the policies into force: {len(suspects)} of them were refused, one by one")

    def _plan(self, deadline: Deadline) -> Phases:
        touched, phases = self.goal.tables.take_touched(), Phases()
        everything = self._doubted
        if everything:
            before = self.held if self._read else None
            self.read(deadline)
            self.figures.compared += 1
            if before is not None and before != self.held:
                self.figures.found_changed += 1
        for table in TABLES:
            if table == ARP and OptionalFeature.ARP_ANSWERS in self.goal.lacking:
                continue
            goal = self.goal.tables.of[table]
            if everything or table not in self.held:
                plan_table(goal, self.held.get(table), None, phases)
            elif table in touched:
                plan_table(goal, self.held[table], touched[table], phases)
        return phases

    def _apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        try:
            self._kernel.apply(operations, deadline)
        except BaseException:
            self._doubted = True  # what was touched is no longer in any plan
            raise
        follow(self.held, operations)
        self.audit.follow(operations)
        self.figures.transactions += 1
        self.figures.operations += len(operations)

    def _find_fault(
        self, error: RulesRefused, transaction: Transaction, suspects: Counter[PolicyId | OptionalFeature]
    ) -> bool:
        """At the second refusal give up the policy or feature that was refused; returns whether one is suspected."""
        feature, operations = transaction
        if error.errno in _TRANSIENT:
            return False
        operation = operations[error.index] if 0 <= error.index < len(operations) else None
        if feature is not None:
            lacking = refused_feature(feature, operation)
            suspects[lacking] += 1
            if suspects[lacking] > 1:
                self.goal.lack(lacking, str(error))
            return True
        if operation is None:
            return False
        name = operation.chain if isinstance(operation, AddRules) else ""
        name = operation.name if isinstance(operation, AddChain) else name
        policy = next(
            (p for p in self.goal.policies for ingress in (True, False) if policy_chain(p, ingress) == name), None
        )
        if not name or policy is None:
            return False
        suspects[policy] += 1
        if suspects[policy] > 1:
            self._log.error(f"{policy} is not enforced, and what it governs is denied: {error}")
            self.goal.give_up(policy, str(error))
        return True

    def let_go(self) -> None:
        """Nothing is applied for now: the comparison before the next time finds what changes meanwhile."""
        self.goal.tables.take_touched()
        self._doubted = True

    def remove(self, deadline: Deadline) -> bool:
        """Remove all our tables; returns whether there were any. Raises RulesRefused, RulesUnknown, KernelError."""
        self.read(deadline)
        tables = list(self.held)
        if not tables:
            return False
        self._apply([DropTable(table) for table in tables], deadline)
        self._doubted = True
        return True
