"""The records one request works on, and the one place where the allocator writes.

Rule: steps say what records become; whether that is one transaction or one write after the other is decided here, from
the same steps. After ``apply`` the ledger knows what is stored, whether it was applied or not: a conflict brings the
current records, an unknown outcome reads them again. So whoever uses it computes, applies, and computes anew when told
that it was not applied.
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
from cni_calico.model.resources import Affinity, Block, Handle, IPAMConfig, Network, Record

CONFLICTS_MAX = 100
REREADS_MAX, UNKNOWNS_MAX = 3, 4
_BACKOFF_S = 0.001
_BACKOFF_MAX_S = 0.05


class Patience:
    """How long to stand back when others write the same records: longer every time, jittered, and not for ever."""

    def __init__(self, rng: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._rng = rng
        self._sleep = sleep

    def wait(self, conflicts: int, what: str, deadline: Deadline) -> bool:
        """Whether it took time. Raises Contention after too many conflicts, DeadlineExceeded."""
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
        self._unknowns = 0  # answers in a row that were lost with nothing done

    # -- reading ------------------------------------------------------------------------------------------------------

    def learn(self, key: Key, found: Stored | None) -> None:
        """Work with this instead of asking the view."""
        self._known[key] = found

    def known(self) -> Mapping[Key, Stored | None]:
        """Every record this ledger knows, as it is stored to the best of its knowledge."""
        return dict(self._known)

    def presume_absent(self, key: Key) -> None:
        """Work as if there were none, unless more is known; a commit finds out."""
        self._known.setdefault(key, None)

    def forget(self, key: Key) -> None:
        """Ask the view again."""
        self._known.pop(key, None)

    def load_blocks(self, cidrs: Iterable[Network]) -> None:
        """Ask for the blocks not known yet, together. Raises CorruptRecord."""
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

    def affinity(self, node: str, cidr: Network) -> Affinity | None:
        key = AffinityKey(node, cidr)
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
        return None if found is None or _is_leaving(found) else found.record

    # -- writing ------------------------------------------------------------------------------------------------------

    def apply(self, steps: Sequence[Step]) -> bool:
        """True: all steps are stored. False: compute again from what the ledger knows now; where the store has no
        transactions, some of them may be stored.

        Raises DatastoreError, CorruptRecord, Contention, DeadlineExceeded.
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
                raise  # nobody else changes anything: it cannot be written
        self._conflicts += 1
        if self._patience.wait(self._conflicts, codec.describe(steps[-1].key), self.deadline):
            # who writes often has written again meanwhile: what the conflict told would only bring the next one
            self.refresh(tuple(dict.fromkeys(step.key for step in steps)))
        return False

    def _groups(self, steps: Sequence[Step]) -> list[list[Step]]:
        """One commit with what every record finally becomes, where it fits in one; else a commit for each step. A store
        that can overlap commits gets the steps together whose order among themselves does not matter.
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
        # what a record already is must be so in the same moment: what is known of it may be old
        writes += [self._expectation(step.key) for step in steps if self._is_so(step)]
        committed = self._store.commit(writes, self.deadline)
        written = iter(committed.stored)
        for step in changes:
            self._known[step.key] = None if step.record is None else Stored(next(written), step.record)

    def _commit_each(self, steps: Sequence[Step]) -> None:
        """A commit for each, at the same time; each is tried, and then the worst that happened is raised."""
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
        """A record marked as deleted is not there, but in the way of a new one: somebody died between mark and end."""
        for step in steps:
            found = self._known[step.key]
            if found is not None and step.record is not None and _is_leaving(found):
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
        """Read from the store itself: a cache may not have seen yet what was done."""
        found: Sequence[Versioned | CorruptRecord | None] = read_each(self._store, keys, self.deadline)
        for key, item in zip(keys, found, strict=True):
            decoded = decode_found(item)
            if isinstance(decoded, CorruptRecord):
                raise decoded
            self._known[key] = decoded


def _is_alike(group: Sequence[Step], step: Step) -> bool:
    """Whether a step may be written together with others: handles among handles, blocks among blocks, each once."""
    kinds = {type(other.key) for other in group}
    return (
        isinstance(step.key, HandleKey | BlockKey)
        and kinds == {type(step.key)}
        and all(other.key != step.key for other in group)
    )


def _is_leaving(found: Stored) -> bool:
    return isinstance(found.record, Block | Handle | Affinity) and found.record.deleted
