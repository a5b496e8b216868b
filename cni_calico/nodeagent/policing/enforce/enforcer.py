"""Puts the goal into force, by transactions in three phases (or one: iptables), and handles their failures.

Rule: the last goal that could be applied is in force; a failed change never opens anything. After a failure, or if
another program changed our tables, they are read back and compared before anything else is done.

A refused transaction is tried once more, based on what is really there. If it is refused again, faultfinder.py finds
what the kernel refuses, and the goal is made without that: a feature that policies do not need is left out (Goal.lack),
while every policy is in force already; for anything else, the endpoints that depend on it are denied
(tables/without.py). The refusal is reported, everything else is in force, and the refused part is tried again
later. The caller gets RulesRefused if the reason is a transient one, or if policies cannot be relied on without what
was refused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from errno import EFBIG, EOPNOTSUPP
from itertools import chain, groupby

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, RulesRefused, RulesUnknown
from cni_calico.kernel.filter.interface import PacketFilter
from cni_calico.log import Log
from cni_calico.netfilter.difference import Phases, Touched
from cni_calico.netfilter.tables import (
    DropTable,
    FilterObject,
    NftTable,
    Operation,
    TableId,
    mirror,
    object_of,
)
from cni_calico.nodeagent.policing.enforce.audit import Audit
from cni_calico.nodeagent.policing.enforce.chain_names import count_rules_in, has_other_names, read_chain_names
from cni_calico.nodeagent.policing.enforce.comparing import plan_goal
from cni_calico.nodeagent.policing.enforce.faultfinder import TRANSIENT, RefusedOperation, find_refused
from cni_calico.nodeagent.policing.enforce.recognition import as_large, as_recognised, join_released
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature, Transaction, refused_feature, transactions
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.standing import has_policies
from cni_calico.nodeagent.policing.tables.touched import ARP, FILTER, TABLES
from cni_calico.nodeagent.policing.tables.without import do_without
from cni_calico.nodeagent.status.policing import PolicyFigures
from cni_calico.policy.wanted import PolicyId

PartOfTable = Callable[[NftTable, FilterSettings], NftTable]
FaultSuspects = Counter[FilterObject | OptionalFeature]

_NEVER = -1  # no generation of a packet filter
_READ_AT_ONCE = 20_000  # rules: some three seconds
_RULE_S = 0.0005  # to write one takes a fifth of that


class Enforcer:
    """For one thread, whose network namespace ``kernel`` works in. ``held``: what the kernel's tables hold, as far as
    known. ``was_policed``: policies were in force when ``look`` succeeded, or have been since; not removed on purpose.
    """

    def __init__(
        self,
        kernel: PacketFilter,
        goal: Goal,
        log: Log,
        figures: PolicyFigures | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """``before`` is called before each transaction."""
        self.goal = goal
        self.figures = figures or PolicyFigures()
        self.held: dict[TableId, NftTable] = {}
        self.was_policed = False
        self._looked_at: int | None = None  # the packet filter's generation when ``look`` began
        self._changed_by = ""  # who was seen to change our tables since they were last repaired
        self._kernel = kernel
        self._log = log
        self._before = before
        self._unread: set[TableId] = set()  # tables that are there, but too large to be read
        self._read = False  # whether ``held`` was ever read
        self._doubted = True  # whether it has to be read again
        self._select: PartOfTable | None = None  # None: all of the goal
        self.audit = Audit(kernel.reader, lambda: self.held)

    @property
    def looked(self) -> bool:
        """Whether ``look`` has succeeded."""
        return self._looked_at is not None

    @property
    def is_there(self) -> bool:
        """Whether any policies' rules of ours are in the kernel, as far as known; standing rules are none."""
        policed = (table == ARP or has_policies(held.chains) for table, held in self.held.items())
        return bool(self._unread) or any(policed)

    def only(self, select: PartOfTable | None) -> None:
        """From now on only this part of the goal is wanted, and no table of ARP; None: all of it."""
        if select is not self._select:
            self._select, self._doubted = select, True

    def keep(self, stand_ins: Collection[PolicyId]) -> None:
        """The policies of which the goal has only a stand-in: what was found of them stays."""
        self.goal.tables.kept.only(stand_ins)
        self.goal.assume_passing(self.goal.tables.kept.marking)

    def _wanted(self, table: TableId) -> NftTable | None:
        goal = self.goal.tables.of[table]
        if self._select is None:
            return self.goal.tables.kept.over(table, goal)
        return None if table == ARP else self._select(goal, self.goal.settings)

    def count(self) -> dict[str, dict[str, int]]:
        """The numbers of chains, rules and sets of each family ("4", "6") that is there."""
        tables = {str(family): self.held[table] for family, table in FILTER.items() if table in self.held}
        return {
            family: {
                "chains": len(table.chains),
                "rules": sum(len(chain.rules) for chain in table.chains.values()),
                "sets": len(table.elements),
            }
            for family, table in tables.items()
        }

    def doubt(self, who: str = "") -> None:
        """Another program may have changed our tables: read them before the next change. ``who``: was seen to."""
        self._doubted = True
        self._changed_by = who or self._changed_by

    def compare_all(self, *, whole: bool) -> None:
        """A full comparison is due: in slices, with ``compare_on``, or as a ``whole`` with the next change; a filter
        without a reader is always read as a whole.
        """
        if whole or self._kernel.reader is None:
            self.doubt()
        else:
            self.audit.begin()

    def compare_lost(self) -> None:
        """Any program may have changed our tables: as ``doubt`` where they are read at once, else in slices."""
        if _count_rules(self.held) <= _READ_AT_ONCE or self._kernel.reader is None:
            self.doubt("somebody")
        else:
            self.audit.begin()

    def forget_cached(self) -> None:
        """Free what a large load left in the packet filter's caches."""
        self._kernel.forget_cached()

    def compare_on(self) -> str:
        """Continue the full comparison that is under way; returns the difference found. Raises KernelError.

        The next ``bring_about`` repairs it.
        """
        found = self.audit.step()
        if found:
            self.doubt(self._changed_by or "somebody")
        return found

    def look(
        self, deadline: Deadline, more_rules: int, stand_ins: Collection[PolicyId] = (), chains: Collection[str] = ()
    ) -> Mapping[TableId, Mapping[str, int]]:
        """Read for the first time what an earlier run left. As ``read``. ``stand_ins``: as for ``keep``. Returns how
        many rules each of ``chains`` has that is there.
        """
        looked_at = _NEVER if self._kernel.reader is None else self._kernel.generation(deadline)
        self.read(deadline, more_rules)
        found = {table: count_rules_in(self._kernel, there, chains, deadline) for table, there in self.held.items()}
        self.goal.tables.kept.begin(self.goal.tables.of, self.held, stand_ins, self.goal.settings.pass_mark)
        self.goal.assume_passing(self.goal.tables.kept.marking)
        self._looked_at, self.was_policed = looked_at, self.is_there
        return found

    def rewriting_s(self) -> float:
        """How long ``bring_about`` may take besides, because it may have to write everything anew."""
        return _count_rules(self.goal.tables.of) * _RULE_S if self._doubted else 0.0

    def repair(self, deadline: Deadline) -> int:
        """As ``bring_about``; if another program was seen to change our tables, and had, that is counted and logged."""
        found_changed = self.figures.found_changed
        done, changed_by = self.bring_about(deadline), self._changed_by
        self._changed_by = ""
        if self.figures.found_changed > found_changed and changed_by:
            self.figures.repairs += 1
            self._log.warning(f"repaired the policies' tables: {changed_by} had changed them")
        return done

    def read(self, deadline: Deadline, more_rules: int = 0) -> None:
        """``more_rules``: how many there may be besides the wanted ones. Raises KernelError."""
        self.audit.give_up()
        held: dict[TableId, NftTable] = {}
        unread: set[TableId] = set()
        for table in TABLES:
            if table in self._unread:  # reading it took so long that there was no time left to replace it
                unread.add(table)
                continue
            wanted = as_large(self._wanted(table), more_rules)
            likes = filter(None, (self.held.get(table), wanted, self.goal.tables.of[table]))
            try:
                found = self._kernel.read_table(table, deadline, tuple(likes))
            except KernelError as e:
                if e.errno == EFBIG:
                    self._log.warning(f"{e}; it is replaced as a whole")
                    unread.add(table)
                    continue
                if table != ARP or e.errno in TRANSIENT:
                    raise
                self.goal.lack(OptionalFeature.ARP_ANSWERS, str(e))
                continue
            if found is not None:
                held[table] = found
        self.held, self._unread, self._read, self._doubted = held, unread, True, False

    def has_other_chains(self, names: Collection[str], deadline: Deadline) -> bool:
        """Whether our tables in the kernel have chains besides these; where that is possible, only names are read.
        Raises KernelError, DeadlineExceeded.
        """
        reader = self._kernel.reader
        try:
            if reader is not None:
                return any(has_other_names(reader, table, names, deadline) for table in TABLES)
        except KernelError as e:
            if e.errno != EOPNOTSUPP:  # it may lack a family
                raise
        self.read(deadline)
        return any(not set(names).issuperset(table.chains) for table in self.held.values())

    def read_chain_names(self, deadline: Deadline) -> frozenset[str]:
        """Of all chains of our tables in the kernel. Raises KernelError, DeadlineExceeded."""
        reader = self._kernel.reader
        try:
            if reader is not None:
                return frozenset().union(*(set(read_chain_names(reader, table, deadline)) for table in FILTER.values()))
        except KernelError as e:
            if e.errno != EOPNOTSUPP:
                raise
        self.read(deadline)
        return frozenset().union(*(table.chains for table in self.held.values()))

    def bring_about(self, deadline: Deadline) -> int:
        """Make the kernel hold the goal; returns the number of transactions needed.

        Raises RulesRefused, RulesUnknown, KernelError, DeadlineExceeded: the goal is not, or not certainly, in force.
        """
        begun = time.monotonic()
        suspects: FaultSuspects = Counter()
        attempt = -1
        while True:  # every refusal makes the goal smaller, or is counted once for each object
            attempt += 1
            phases = self._plan(deadline)
            if not phases:
                self._require_essential()
                return 0 if attempt == 0 else 1
            done = 0
            try:
                for transaction in transactions(phases, at_once=self._kernel.at_once):
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
                if not self._find_fault(e, transaction, suspects, deadline) and attempt:
                    raise
                continue
            self.figures.apply.observe(time.monotonic() - begun)
            self._require_essential()
            return done

    def _require_essential(self) -> None:
        """Raises RulesRefused if policies depend on something that is withheld."""
        missing = self.goal.refused.essential()
        if missing:
            raise RulesRefused(
                f"everything else is in force, but policies depend on what the kernel refuses: {missing}"
            )

    def _plan(self, deadline: Deadline) -> Phases:
        touched = self.goal.tables.take_touched()
        join_released(touched, self.goal.tables, self.held, self._kernel.recognises)
        everything = self._doubted
        if everything:
            self.figures.compared += 1
            if self._is_as_found(deadline):
                self._doubted = False
                return Phases()
            before = self.held if self._read else None
            self.read(deadline)
            if before is not None and before != self.held and as_recognised(before, self.held) != self.held:
                self.figures.found_changed += 1
        return self._compare(None if everything else touched)

    def _is_as_found(self, deadline: Deadline) -> bool:
        """Whether ``look`` has just read the goal, and nobody has changed anything since: it is not read twice then."""
        looked_at, self._looked_at = self._looked_at, None if self._looked_at is None else _NEVER
        if looked_at in (None, _NEVER) or self._unread:
            return False
        return self._kernel.generation(deadline) == looked_at and not self._compare(None)

    def _compare(self, touched: Mapping[TableId, Touched] | None) -> Phases:
        return plan_goal(self.goal, self._wanted, self.held, self._unread, touched)

    def _apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        self._before()
        try:
            self._kernel.apply(operations, deadline)
        except BaseException as e:
            self._doubted = True  # what was touched is no longer in any plan
            if isinstance(e, RulesUnknown):
                self._unread.clear()  # it may have been replaced
            raise
        for table in self._unread & {one.table for one in operations if isinstance(one, DropTable)}:
            self.held[table] = NftTable(table.family, table.name)
            self._unread.discard(table)
        mirror(self.held, operations)
        self.audit.mirror(operations)
        self.figures.transactions += 1
        self.figures.operations += len(operations)

    def _find_fault(
        self, error: RulesRefused, transaction: Transaction, suspects: FaultSuspects, deadline: Deadline
    ) -> bool:
        """At the second refusal make the goal without what was refused; returns whether anything is suspected.

        Raises RulesRefused, RulesUnknown, DeadlineExceeded.
        """
        feature, operations = transaction
        if error.errno in TRANSIENT:
            return False
        if feature is not None:
            operation = operations[error.index] if 0 <= error.index < len(operations) else None
            lacking = refused_feature(feature, operation)
            suspects[lacking] += 1
            if suspects[lacking] > 1:
                self.goal.lack(lacking, str(error))
            return True
        refused = find_refused(self._kernel, operations, error, deadline)
        for operation, _ in refused:
            suspects[object_of(operation)] += 1
        if refused:
            again = [one for one in refused if suspects[object_of(one[0])] > 1]
            return not again or self._do_without(again)
        whole = (operations[0].table, "")
        suspects[whole] += 1
        return suspects[whole] == 1 or self._do_without(self._apply_in_parts(operations, deadline))

    def _do_without(self, refused: Sequence[RefusedOperation]) -> bool:
        """Returns whether the goal changed."""
        before = set(self.goal.problems), set(self.goal.left_out())
        changed = [do_without(self.goal, operation, why) for operation, why in refused]
        for policy in self.goal.problems.keys() - before[0]:
            self._log.error(f"{policy} is not enforced, and what it governs is denied: {self.goal.problems[policy]}")
        for text in sorted(set(self.goal.left_out()) - before[1]):
            self._log.error(text)
        return any(changed)

    def _apply_in_parts(self, operations: Sequence[Operation], deadline: Deadline) -> list[RefusedOperation]:
        """For a kernel that does not say in advance what it refuses: apply as much as possible, object by object if
        need be. Returns the operations that it refused. Raises RulesRefused for a transient reason, RulesUnknown,
        DeadlineExceeded.
        """
        try:
            self._apply(operations, deadline)
        except RulesRefused as e:
            if e.errno in TRANSIENT:
                raise
            parts = [list(part) for _, part in groupby(operations, object_of)]
            if len(parts) == 1:
                return [(parts[0][-1], str(e))]
            half = len(parts) // 2
            halves = (list(chain.from_iterable(some)) for some in (parts[:half], parts[half:]))
            return [one for some in halves for one in self._apply_in_parts(some, deadline)]
        return []

    def let_go(self) -> None:
        """Nothing is applied for now; before the next change the tables are compared, which finds what others changed
        meanwhile.
        """
        self.goal.tables.take_touched()
        self._doubted = True

    def remove(self, deadline: Deadline) -> bool:
        """Remove all our tables; returns whether there were any. Raises RulesRefused, RulesUnknown, KernelError."""
        self.read(deadline)
        tables = [*self.held, *self._unread]
        if not tables:
            return False
        self._apply([DropTable(table) for table in tables], deadline)
        self._doubted = True
        return True


def _count_rules(tables: Mapping[TableId, NftTable]) -> int:
    return sum(len(chain.rules) for table in tables.values() for chain in table.chains.values())
