"""Policies above a budget that an agent without that budget had put into force: they stay in force, and are reported.

Rule: the first evidence is in the kernel: where the policy's own chain has at least as many rules as its record, when
the tables are read first, it is in force. A policy that denies because of the budget has a chain of one rule. From then
on a file says which policies are spared, and at what size, because a reboot empties the kernel.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.netfilter.tables import TableId
from cni_calico.nodeagent.policing.tables.naming import policy_chain
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.graph import Graph
from cni_calico.policy.wanted import PolicyId

FILE = "spared-policies.json"


class Spared:
    """For one thread. A file that cannot be read or written costs a policy its exception, after a reboot only."""

    def __init__(self, files: Files, log: Log, state_dir: str) -> None:
        self._files, self._log = files, log
        self._directory, self._path = state_dir, f"{state_dir}/{FILE}"
        self._written: dict[PolicyId, int] | None = None  # what the file has; None: not known

    def begin(
        self, graph: Graph, there: Mapping[TableId, Mapping[str, int]], stand_ins: Collection[PolicyId] = ()
    ) -> bool:
        """``there``: how many rules the chains over budget had when the tables were read first, and those of
        ``stand_ins``, which are judged in their turn. Returns whether the graph has to be calculated anew.
        """
        self._written = self._read()
        before = self._written or {}
        counts = {**graph.over_budget, **graph.room.without}
        found = {name: count for name, count in counts.items() if count <= before.get(name, 0)}
        found |= {name: count for name, count in counts.items() if name not in found and _is_there(graph, name, there)}
        graph.spare(found)
        graph.room.stood.update(name for name in stand_ins if _has_rules(name, there))
        return bool(found)

    def keep(self, graph: Graph) -> None:
        """The file has what is spared now."""
        if self._written == graph.spared:
            return
        content = [
            [name.kind, name.namespace, name.name, count] for name, count in sorted(graph.spared.items(), key=str)
        ]
        try:
            if content:
                self._files.make_directory(self._directory, 0o755)
                self._files.write_atomic(self._path, json.dumps(content).encode(), 0o600)
            else:
                self._files.remove(self._path)
        except OSError as e:
            self._log.warning(f"cannot write {self._path}: {e.strerror or e}: after a reboot these policies would deny")
        self._written = dict(graph.spared)

    def _read(self) -> dict[PolicyId, int] | None:
        try:
            listed = json.loads(self._files.read_bytes(self._path))
            return {PolicyId(kind, name, namespace): int(count) for kind, namespace, name, count in listed}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, OverflowError, RecursionError) as e:
            self._log.warning(f"cannot use {self._path}: {e}: what it had spared denies")
            return None


def chains_over_budget(graph: Graph) -> frozenset[str]:
    """Those that the policies which deny because of the budget would have."""
    return chains_of((*graph.over_budget, *graph.room.without))


def chains_of(names: Iterable[PolicyId]) -> frozenset[str]:
    return frozenset(policy_chain(name, ingress) for name in names for ingress in (True, False))


def _has_rules(name: PolicyId, there: Mapping[TableId, Mapping[str, int]]) -> bool:
    """More than one: that may be a deny."""
    return any(counts.get(chain, 0) > 1 for counts in there.values() for chain in chains_of((name,)))


def _is_there(graph: Graph, name: PolicyId, there: Mapping[TableId, Mapping[str, int]]) -> bool:
    record = graph.policy(name)
    for family, table in FILTER.items():
        if record is None or table not in there:
            continue
        for ingress, rules in ((True, record.wanted.ingress), (False, record.wanted.egress)):
            its = sum(family in rule.families for rule in rules or ())
            if 1 < its <= there[table].get(policy_chain(name, ingress), 0):
                return True
    return False
