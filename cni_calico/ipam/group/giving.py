"""Releases that arrived together, carried out in one commit, or in one write per block.

Rule: an address is released only if its handle's count includes it. A count that does not match means that the block in
memory is not the stored one; that release is then left to the plain allocator, which reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cni_calico.datastore.interface import Datastore
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.batch import Assigned, Give, Step, plan_batch
from cni_calico.ipam.block import interfaces_of
from cni_calico.ipam.group.items import ATTEMPTS, HANDLE_BLOCKS_MAX, SLOW, Ending, Item, Outcome
from cni_calico.ipam.group.known import KnownRecords
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.release import leave_emptied
from cni_calico.ipam.view import decode_found, read_each
from cni_calico.model.keys import HandleKey
from cni_calico.model.resources import Handle, Network


class Giving:
    """The releases of one batch, on its ledger."""

    def __init__(self, store: Datastore, known: KnownRecords, ledger: Ledger, now_ns: Callable[[], int]) -> None:
        self._store = store
        self._known = known
        self._ledger = ledger
        self._now_ns = now_ns

    def run(self, items: Sequence[Item]) -> list[Outcome]:
        """None, an Ending or SLOW for each item."""
        self._load_handles([item.handle_id for item in items])
        for _ in range(ATTEMPTS):
            given = self._give_once(items)
            if given is not None:
                return given
        return [SLOW] * len(items)

    def _load_handles(self, handle_ids: Sequence[str]) -> None:
        unknown = []
        for handle_id in handle_ids:
            known = self._known.handles.get(handle_id)
            if known is None:
                unknown.append(HandleKey(handle_id))
            else:
                self._ledger.learn(HandleKey(handle_id), known)
        for key, found in zip(unknown, read_each(self._store, unknown, self._ledger.deadline), strict=True):
            decoded = decode_found(found)
            if not isinstance(decoded, CorruptRecord):  # a corrupt handle concerns only its own request
                self._ledger.learn(key, decoded)

    def _give_once(self, items: Sequence[Item]) -> list[Outcome] | None:
        """None for each item whose handle holds nothing any more, SLOW for the others; None after a conflict."""
        ledger = self._ledger
        known = ledger.known()
        outcomes: list[Outcome] = [SLOW] * len(items)
        held: dict[int, Handle] = {}
        for i, item in enumerate(items):
            if HandleKey(item.handle_id) in known:
                handle = ledger.handle(item.handle_id)
                if handle is None:
                    outcomes[i] = None
                elif 0 < len(handle.blocks) <= HANDLE_BLOCKS_MAX:
                    held[i] = handle
        cidrs = list(dict.fromkeys(cidr for handle in held.values() for cidr in handle.blocks))
        ledger.load_blocks(cidrs)
        held = {i: handle for i, handle in held.items() if self._is_whole(items[i], handle)}
        while held:
            gives = [Give(items[i].handle_id) for i in held]
            blocks = {cidr: ledger.block(cidr) for cidr in cidrs}
            plan = plan_batch(blocks, {items[i].handle_id: handle for i, handle in held.items()}, gives)
            given = {i: _assigned(out) for i, out in zip(held, plan.outcomes, strict=True)}
            # a count that does not match means that the block we know is not the stored one
            doubtful = [i for i, out in given.items() if not _accounts_for(held[i], out)]
            if not doubtful:
                for i, out in given.items():
                    items[i].freed.update(dict.fromkeys(assigned.address for assigned in out))
                endings = self._endings(plan.steps)
                if not ledger.apply([step for step in plan.steps if step not in endings]):
                    return None
                leave_emptied(ledger, cidrs, self._now_ns())
                for i in held:
                    key = HandleKey(items[i].handle_id)
                    ending = next((step for step in endings if step.key == key), None)
                    outcomes[i] = None if ending is None else Ending(ending, known[key])
                return outcomes
            for i in doubtful:
                del held[i]
        return outcomes

    def _is_whole(self, item: Item, handle: Handle) -> bool:
        """Whether everything that a handle holds is to be released; finding the owner of the rest would
        need reading.
        """
        if item.share is None:
            return True
        blocks = filter(None, map(self._ledger.block, handle.blocks))
        return all(set(interfaces_of(b, item.handle_id).values()) <= {item.share.interface} for b in blocks)

    def _endings(self, steps: Sequence[Step]) -> list[Step]:
        """The steps that each caller carries out itself once the others are done."""
        return [step for step in steps if isinstance(step.key, HandleKey)] if self._store.max_commit == 1 else []


def _assigned(outcome: object) -> tuple[Assigned, ...]:
    assert isinstance(outcome, tuple)
    return outcome


def _accounts_for(handle: Handle, given: Sequence[Assigned]) -> bool:
    """Whether the released addresses match the handle's counts, block by block."""
    found: dict[Network, int] = {}
    for assigned in given:
        found[assigned.block] = found.get(assigned.block, 0) + 1
    return found == dict(handle.blocks)
