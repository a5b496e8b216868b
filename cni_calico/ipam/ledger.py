"""The records that one request works on, and the one place where the allocator writes.

Rule: steps say what records become; this module decides from the same steps whether they are one transaction or one
write after the other. After ``apply`` the ledger knows what is stored, whether it was applied or not: a conflict
returns the current records, and after an unknown outcome they are read again. So its user computes the steps, calls
``apply``, and computes again if that returns False.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cni_calico.datastore.interface import CommitConflict, Datastore, Failed, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, Contention, CorruptRecord, DatastoreUnavailable, OutcomeUnknown
from cni_calico.ipam.batch import Step
from cni_calico.ipam.view import Stored, View, decode_found, read_each
from cni_calico.ipam.view import stored as decode_stored
from cni_calico.model.documents import codec
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, Key
from cni_calico.model.resources import Affinity, Block, Handle, IPAMConfig, Network, Record, is_deleted

CONFLICTS_MAX = 100
REREADS_MAX, UNKNOWNS_MAX = 3, 4
_BACKOFF_S = 0.001
_BACKOFF_MAX_S = 0.05


class Patience:
    """How long to wait when others write the same records: longer every time, with jitter, and not forever."""

    def __init__(self, rng: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._rng = rng
        self._sleep = sleep

    def wait(self, conflicts: int, what: str, deadline: Deadline) -> bool:
        """Whether it waited. Raises Contention after too many conflicts, DeadlineExceeded."""
        left = deadline.require(f"write {what}")
        if conflicts > CONFLICTS_MAX:
            raise Contention(f"cannot write {what}: changed by somebody else {conflicts} times in a row")
        if conflicts <= 1:
            return False
        backoff = min(_BACKOFF_S * 2 ** min(conflicts, 10), _BACKOFF_MAX_S)
        self._sleep(min(backoff * (0.5 + self._rng()), left))
        return True


class Ledger:
    """Not to be shared between requests or threads."""

    def __init__(self, store: Datastore, view: View, deadline: Deadline, patience: Patience) -> None:
        self.view = view
        self.deadline = deadline
        self.wrote = False  # whether anything may have been written
        self._store = store
        self._patience = patience
        self._known: dict[Key, Stored | None] = {}
        self._conflicts = 0
        self._unknowns = 0  # consecutive lost answers of writes that turned out not to have been applied

    # -- reading ------------------------------------------------------------------------------------------------------

    def learn(self, key: Key, found: Stored | None) -> None:
        """Use this instead of asking the view."""
        self._known[key] = found

    def known(self) -> Mapping[Key, Stored | None]:
        """Every record that this ledger knows, as it is stored to the best of its knowledge."""
        return dict(self._known)

    def presume_absent(self, key: Key) -> None:
        """Assume that there is no such record, unless more is known; a commit detects it if that is wrong."""
        self._known.setdefault(key, None)

    def forget(self, key: Key) -> None:
        """Ask the view again."""
        self._known.pop(key, None)

    def load_blocks(self, cidrs: Iterable[Network]) -> None:
        """Ask for the blocks that are not known yet, together. Raises CorruptRecord."""
        unknown = [cidr for cidr in dict.fromkeys(cidrs) if BlockKey(cidr) not in self._known]
        if not unknown:
            return
        for cidr, found in zip(unknown, self.view.blocks(unknown, self.deadline), strict=True):
            if isinstance(found, CorruptRecord):
                raise found
            self._known[BlockKey(cidr)] = found

    def block(self, cidr: Network) -> Block | None:
        self.load_blocks((cidr,))
        record = self._current(BlockKey(cidr))
        return record if isinstance(record, Block) else None

    def handle(self, handle_id: str) -> Handle | None:
        key = HandleKey(handle_id)
        if key not in self._known:
            self._known[key] = self.view.handle(handle_id, self.deadline)
        record = self._current(key)
        return record if isinstance(record, Handle) else None

    def affinity(self, node: str, cidr: Network, kind: str = "host") -> Affinity | None:
        key = AffinityKey(node, cidr, kind)
        if key not in self._known:
            self.refresh((key,))
        record = self._current(key)
        return record if isinstance(record, Affinity) else None

    def config(self) -> IPAMConfig | None:
        key = IPAMConfigKey()
        if key not in self._known:
            self.refresh((key,))
        record = self._current(key)
        return record if isinstance(record, IPAMConfig) else None

    def _current(self, key: Key) -> Record | None:
        found = self._known[key]
        return None if found is None or is_deleted(found.record) else found.record

    # -- writing ------------------------------------------------------------------------------------------------------

    def apply(self, steps: Sequence[Step]) -> bool:
        """True: all steps are stored. False: compute again from what the ledger knows now.

        With False, on a store without transactions, some of the steps may be stored. Raises DatastoreError,
        CorruptRecord, Contention, DeadlineExceeded.
        """
        try:
            for group in self._groups(steps):
                if len(group) > self._store.max_commit:
                    self._commit_each(group)
                else:
                    self._commit(group)
            self._unknowns = 0
            return True
        except CommitConflict as e:
            self._unknowns = 0
            for failed in e.failed:
                self._known[failed.key] = None if failed.current is None else decode_stored(failed.current)
        except OutcomeUnknown as e:
            before = dict(self._known)
            self._reread_after(e, tuple(dict.fromkeys(step.key for step in steps)))
            self._unknowns = self._unknowns + 1 if self._known == before else 0
            if self._unknowns >= UNKNOWNS_MAX:
                raise  # nobody else changes the records: they cannot be written
        self._conflicts += 1
        if self._patience.wait(self._conflicts, codec.describe(steps[-1].key), self.deadline):
            # another process writes so often that the records of this conflict are out of date already
            self.refresh(tuple(dict.fromkeys(step.key for step in steps)))
        return False

    def _groups(self, steps: Sequence[Step]) -> list[list[Step]]:
        """One commit with the final state of every record, if it fits in one; else a commit for each step.

        A store that can carry out several commits at a time gets steps together if their order does not matter.
        """
        last = {step.key: step for step in steps}
        if len(last) <= self._store.max_commit:
            return [list(last.values())]
        groups: list[list[Step]] = []
        for step in steps:
            if groups and self._store.commit_each is not None and _is_alike(groups[-1], step):
                groups[-1].append(step)
            else:
                groups.append([step])
        return groups

    def _commit(self, steps: Sequence[Step]) -> None:
        changes = [step for step in steps if not self._is_so(step)]
        if not changes:
            return
        self.wrote = True
        self._finish_deletions(changes)
        writes = [self._write(step) for step in changes]
        # a record that must be unchanged has to be compared in the same commit: what is known of it may be old
        writes += [self._expectation(step.key) for step in steps if self._is_so(step)]
        committed = self._store.commit(writes, self.deadline)
        written = iter(committed.stored)
        for step in changes:
            self._known[step.key] = None if step.record is None else Stored(next(written), step.record)

    def _commit_each(self, steps: Sequence[Step]) -> None:
        """One commit for each, at the same time; all are tried, and then the worst error is raised."""
        changes = [step for step in steps if not self._is_so(step)]
        if not changes:
            return
        self.wrote = True
        self._finish_deletions(changes)
        assert self._store.commit_each is not None
        each = self._store.commit_each([self._write(step) for step in changes], self.deadline)
        conflicts: list[Failed] = []
        errors: list[CalicoError] = []
        for step, outcome in zip(changes, each, strict=True):
            if isinstance(outcome, CommitConflict):
                conflicts += outcome.failed
            elif isinstance(outcome, CalicoError):
                errors.append(outcome)
            else:
                self._known[step.key] = None if step.record is None else Stored(outcome.stored[0], step.record)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, OutcomeUnknown))
        if conflicts:
            raise CommitConflict(conflicts)

    def _expectation(self, key: Key) -> Write:
        found = self._known[key]
        return Write.expect_absent(key) if found is None else Write.expect(found.at)

    def _is_so(self, step: Step) -> bool:
        found = self._known[step.key]
        if step.record is None:
            return found is None
        return isinstance(step.record, Affinity) and found is not None and found.record == step.record

    def _write(self, step: Step) -> Write:
        found = self._known[step.key]
        if step.record is None:
            assert found is not None
            return Write.delete(found.at)
        document = codec.encode(step.record)
        return Write.create(step.key, document) if found is None else Write.update(found.at, document)

    def _finish_deletions(self, steps: Sequence[Step]) -> None:
        """A record marked as deleted counts as absent but blocks a new one: a process died between mark and end."""
        for step in steps:
            found = self._known[step.key]
            if found is not None and step.record is not None and is_deleted(found.record):
                self._store.commit([Write.delete(found.at)], self.deadline)
                self._known[step.key] = None

    # -- after a lost answer ------------------------------------------------------------------------------------------

    def _reread_after(self, error: OutcomeUnknown, keys: Sequence[Key]) -> None:
        for attempt in range(1, REREADS_MAX + 1):
            try:
                self.refresh(keys)
                return
            except DatastoreUnavailable as e:
                if attempt == REREADS_MAX:
                    raise error from e
                self._patience.wait(attempt + 1, codec.describe(keys[0]), self.deadline)

    def refresh(self, keys: Sequence[Key]) -> None:
        """Read from the store itself: a cache may not have seen the write yet."""
        found: Sequence[Versioned | CorruptRecord | None] = read_each(self._store, keys, self.deadline)
        for key, item in zip(keys, found, strict=True):
            decoded = decode_found(item)
            if isinstance(decoded, CorruptRecord):
                raise decoded
            self._known[key] = decoded


def _is_alike(group: Sequence[Step], step: Step) -> bool:
    """Whether a step may be written together with others: handles with handles, blocks with blocks, each once."""
    kinds = {type(other.key) for other in group}
    return (
        isinstance(step.key, HandleKey | BlockKey)
        and kinds == {type(step.key)}
        and all(other.key != step.key for other in group)
    )
