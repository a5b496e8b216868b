"""What the rules would be with the staged policies, for the recorder of flows; nothing of it reaches the packet filter.

Rule: without staged policies nothing is kept. With them there is a second graph, of the same records; it is worked out
in the keeper's thread, so that the engine only hands on what it gets. A staged policy that cannot be used counts as
absent, and is said.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock

from cni_calico.flows.judging.encoding import (
    StagedName,
    render_changes,
    render_nothing,
    render_staged,
    render_whole,
)
from cni_calico.log import Log
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.graph import Graph
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.records import POLICY_KINDS
from cni_calico.policy.staged import StagedOverlay, StagedPolicy
from cni_calico.policy.wanted import PolicyId
from cni_calico.survived import tell_survived

MOST_STAGED = 500  # on a node; a tenant may make any number, and namespaces take turns
_MOST_MEMBERS = 500_000  # that sets of staged policies of namespaces may have together
_MOST_WAITING = 200_000  # records; then everything is asked for again
_AT_ONCE = 5_000
_PART = "staged policies"
NO_SPARED: Mapping[PolicyId, int] = {}
_POLICIES = frozenset(POLICY_KINDS)


class _Inlet:
    """A graph, and what the engine has handed on for it."""

    def __init__(self, graph: Graph, records: Iterable[tuple[ResourceKey, GraphRecord]]) -> None:
        self.graph = graph
        self.waiting: deque[tuple[ResourceKey, GraphRecord | None]] = deque(records)
        self.overlay = StagedOverlay()
        self.enforced: dict[ResourceKey, GraphRecord] = {}  # policies
        self.is_new = True

    def take(self, most: int) -> bool:
        """Put what waits into the graph; returns whether there was something."""
        for number in range(most):
            if not self.waiting:
                return number > 0
            key, record = self.waiting.popleft()
            if key.kind in _POLICIES:
                if record is None:
                    self.enforced.pop(key, None)
                else:
                    self.enforced[key] = record
            for at, one in self.overlay.put(key, record):
                self.graph.put(at, one)
        return True

    def stage(self, key: ResourceKey, staged: StagedPolicy | None) -> str:
        """Returns why it cannot be used, "" if it can."""
        self._put(key, staged)
        why = "" if staged is None else self.graph.problems.get(staged.enforced, "")
        if why and staged is not None and self.overlay.staged[staged.policy] is staged:
            self._put(key, None)
            return why
        return ""

    def _put(self, key: ResourceKey, staged: StagedPolicy | None) -> None:
        for at, record in self.overlay.stage(key, staged, self.enforced.get):
            self.graph.put(at, record)


class StagedRules:
    """``begin`` and ``put`` in the engine's thread, ``stage`` in any, ``go_on`` in the keeper's. ``wake`` the engine;
    ``tell`` is called with a part and what is wrong with it, "" for nothing.
    """

    def __init__(
        self,
        node: str,
        log: Log,
        wake: Callable[[], None] = lambda: None,
        tell: Callable[[str, str], object] = lambda part, why: None,
    ) -> None:
        self._node, self._log, self._wake, self._tell = node, log, wake, tell
        self._lock = Lock()
        self._wanted: dict[ResourceKey, StagedPolicy | str] = {}  # a text: why it cannot be used
        self._usable: dict[ResourceKey, StagedPolicy] = {}  # of these, when they had changed last
        self._is_new = self._asks = self._told = False
        self._inlet: _Inlet | None = None
        self._trouble = self._failed = ""
        self.needs = OtherNeeds()

    # -- the engine's thread ------------------------------------------------------------------------------------------

    @property
    def wants_all(self) -> bool:
        """Whether ``begin`` has to be called."""
        return self._asks

    @property
    def hears(self) -> bool:
        return self._inlet is not None

    def begin(
        self,
        records: Iterable[tuple[ResourceKey, GraphRecord]],
        budget: int | None = None,
        spared: Mapping[PolicyId, int] = NO_SPARED,
        total: int | None = None,
    ) -> None:
        """Everything that the engine's graph has. ``budget``: of rules that a policy may need, if it is not spared;
        ``total``: all namespaces' together.
        """
        graph = Graph(lambda endpoint: endpoint.node == self._node, lambda host: host.node == self._node)
        if budget is not None:
            graph.set_budget(budget, total)
            graph.spare(spared)
        graph.bound_members(lambda members: members <= _MOST_MEMBERS)
        inlet = _Inlet(graph, records)
        with self._lock:
            self._inlet, self._asks = inlet, False

    def put(self, key: ResourceKey, record: GraphRecord | None) -> None:
        inlet = self._inlet
        if inlet is None:
            return
        if len(inlet.waiting) > _MOST_WAITING:  # the keeper's thread does not come to it: begin anew later
            self.forget()
        else:
            inlet.waiting.append((key, record))

    def forget(self) -> None:
        """What the engine knows begins anew."""
        with self._lock:
            self._asks, self._inlet = bool(self._wanted), None

    # -- any thread ---------------------------------------------------------------------------------------------------

    def stage(self, key: ResourceKey, staged: StagedPolicy | str | None) -> None:
        """None: it is gone, or to be ignored; a text: why it cannot be used."""
        with self._lock:
            if staged is None:
                self._wanted.pop(key, None)
            else:
                self._wanted[key] = staged
            self._is_new = True

    def stage_none(self) -> None:
        with self._lock:
            self._wanted.clear()
            self._is_new = True

    # -- the keeper's thread ------------------------------------------------------------------------------------------

    def go_on(self, *, anew: bool) -> Iterator[bytes] | None:
        """Messages for the recorder, None for nothing new. ``anew``: it knows nothing. What goes wrong ends staged
        policies' effect until one of them changes, and neither recording nor the agent.
        """
        if self._failed and not self._is_new:
            return self._tell_nothing(anew=anew)
        try:
            self._failed = ""
            return self._go_on(anew=anew)
        except Exception as e:
            tell_survived(e)
            self._failed = f"what they would do cannot be worked out: {type(e).__name__}: {e}"
            self._say_troubles(0)
            with self._lock:
                self._inlet, self._asks, self._is_new, self.needs = None, False, False, OtherNeeds()
            return self._tell_nothing(anew=anew)

    def _go_on(self, *, anew: bool) -> Iterator[bytes] | None:
        with self._lock:
            changed, self._is_new = self._is_new, False
            if changed:
                self._usable = _in_turn(self._wanted)
            usable, inlet = self._usable, self._inlet
            if not usable:
                self._asks, self._inlet = False, None
        if changed:
            self._say_troubles(len(usable))
        if not usable:
            self.needs = OtherNeeds()
            return self._tell_nothing(anew=anew)
        if inlet is None:
            self._ask()
            return self._tell_nothing(anew=anew)
        moved = inlet.take(_AT_ONCE)
        if inlet.waiting:  # first everything, so that no half of it is told
            self._is_new = self._is_new or changed or anew
            return self._tell_nothing(anew=anew)
        if changed or inlet.is_new:
            self._stage(inlet, usable)
        if not (moved or changed or anew or inlet.is_new):
            return None
        flushed = inlet.graph.flush()
        if flushed.facts.needs != self.needs:
            self.needs = flushed.facts.needs
            self._wake()
        if changed or anew or inlet.is_new or not self._told:
            inlet.is_new, self._told = False, True
            staged = inlet.overlay.staged.items()
            names = [StagedName(policy, one.key.kind, one.key.name) for policy, one in staged]
            return render_staged(render_whole(inlet.graph.wanted()), names)
        return render_staged(render_changes(flushed.changes), ()) if flushed.changes else None

    def _tell_nothing(self, *, anew: bool) -> Iterator[bytes] | None:
        told, self._told = self._told, False
        return render_staged(render_nothing(), ()) if told or anew else None

    def _ask(self) -> None:
        with self._lock:
            asked, self._asks = self._asks, True
        if not asked:
            self._wake()

    def _stage(self, inlet: _Inlet, usable: dict[ResourceKey, StagedPolicy]) -> None:
        looked_at = dict(list(usable.items())[:MOST_STAGED])
        for key in [key for key in inlet.overlay.known() if key not in looked_at]:
            inlet.stage(key, None)
        for key, staged in looked_at.items():
            why = inlet.stage(key, staged)
            if why:
                with self._lock:
                    if self._wanted.get(key) is staged:
                        self._wanted[key] = f"{describe(key)} is left out: {why}"
                self._usable.pop(key)
        self._say_troubles(len(usable))

    def _say_troubles(self, usable: int) -> None:
        with self._lock:
            found = [self._failed] if self._failed else []
            found += [one for _, one in sorted(self._wanted.items(), key=_by_key) if isinstance(one, str)]
        if usable > MOST_STAGED:
            found.append(f"of {usable} staged policies only {MOST_STAGED} are looked at")
        trouble = "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
        if trouble != self._trouble:
            if trouble:
                self._log.warning(f"staged policies: {trouble}")
            self._trouble = trouble
            self._tell(_PART, trouble)


def _by_key(item: tuple[ResourceKey, object]) -> str:
    return str(item[0])


def _in_turn(wanted: Mapping[ResourceKey, StagedPolicy | str]) -> dict[ResourceKey, StagedPolicy]:
    """Those that can be used: the first of each namespace, then the second, so that many of one leave others theirs;
    global ones before all.
    """
    before: Counter[str] = Counter()
    found: list[tuple[int, ResourceKey, StagedPolicy]] = []
    for key, one in sorted(wanted.items(), key=_by_key):
        if isinstance(one, StagedPolicy):
            before[key.namespace] += bool(key.namespace)
            found.append((before[key.namespace], key, one))
    return {key: one for _, key, one in sorted(found, key=lambda each: each[0])}
