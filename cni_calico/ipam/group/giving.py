"""Releases that arrived together, carried out in one commit, or in one write per block.

Rule: an address is released only if its handle's count includes it. A count that does not match means that the block in
memory is not the stored one; that release is then left to the plain allocator, which reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cni_calico.datastore.interface import Datastore, has_transactions
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.batch import Assigned, BatchPlan, Give, Step, plan_batch
from cni_calico.ipam.block import interfaces_of
from cni_calico.ipam.group.items import ATTEMPTS, HANDLE_BLOCKS_MAX, SLOW, Ending, GroupOutcome, Item
from cni_calico.ipam.group.known import KnownRecords
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.release import leave_emptied
from cni_calico.ipam.view import decode_found, read_each
from cni_calico.model.keys import HandleKey, Key
from cni_calico.model.resources import Handle, Network


class Giving:
    """The releases of one batch, on its ledger."""

    def __init__(self, store: Datastore, known: KnownRecords, ledger: Ledger, now_ns: Callable[[], int]) -> None:
        self._store = store
        self._known = known
        self._ledger = ledger
        self._now_ns = now_ns

    def run(self, items: Sequence[Item]) -> list[GroupOutcome]:
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

    def _give_once(self, items: Sequence[Item]) -> list[GroupOutcome] | None:
        """None for each item whose handle holds nothing any more, SLOW for the others; None after a conflict."""
        outcomes: list[GroupOutcome] = [SLOW] * len(items)
        held = self._held(items, outcomes)
        cidrs = list(dict.fromkeys(cidr for handle in held.values() for cidr in handle.blocks))
        self._ledger.load_blocks(cidrs)
        held = {i: handle for i, handle in held.items() if self._is_whole(items[i], handle)}
        plan = self._plan(items, held, cidrs)
        if plan is None:
            return outcomes
        endings = self._endings(plan.steps)
        if not self._ledger.apply([step for step in plan.steps if step.key not in endings]):
            return None
        leave_emptied(self._ledger, cidrs, self._now_ns())
        for i in held:
            outcomes[i] = endings.get(HandleKey(items[i].handle_id))
        return outcomes

    def _held(self, items: Sequence[Item], outcomes: list[GroupOutcome]) -> dict[int, Handle]:
        """The handles that can be released here, by item; sets the outcome of items that hold nothing."""
        known = self._ledger.known()
        held: dict[int, Handle] = {}
        for i, item in enumerate(items):
            if HandleKey(item.handle_id) in known:
                handle = self._ledger.handle(item.handle_id)
                if handle is None:
                    outcomes[i] = None
                elif 0 < len(handle.blocks) <= HANDLE_BLOCKS_MAX:
                    held[i] = handle
        return held

    def _plan(self, items: Sequence[Item], held: dict[int, Handle], cidrs: Sequence[Network]) -> BatchPlan | None:
        """Plan the release of ``held``; handles whose count does not match are taken out of it."""
        while held:
            blocks = {cidr: self._ledger.block(cidr) for cidr in cidrs}
            gives = [Give(items[i].handle_id) for i in held]
            plan = plan_batch(blocks, {items[i].handle_id: handle for i, handle in held.items()}, gives)
            given = {i: _assigned(out) for i, out in zip(held, plan.outcomes, strict=True)}
            # a count that does not match means that the remembered block is not the stored one
            doubtful = [i for i, out in given.items() if not _accounts_for(held[i], out)]
            if not doubtful:
                for i, out in given.items():
                    items[i].freed.update(dict.fromkeys(assigned.address for assigned in out))
                return plan
            for i in doubtful:
                del held[i]
        return None

    def _is_whole(self, item: Item, handle: Handle) -> bool:
        """Whether everything that a handle holds is to be released; finding the owner of the rest would
        need reading.
        """
        if item.share is None:
            return True
        blocks = filter(None, map(self._ledger.block, handle.blocks))
        return all(set(interfaces_of(b, item.handle_id).values()) <= {item.share.interface} for b in blocks)

    def _endings(self, steps: Sequence[Step]) -> dict[Key, Ending]:
        """The steps that each caller carries out itself once the others are done."""
        if has_transactions(self._store):
            return {}
        known = self._ledger.known()
        return {step.key: Ending(step, known[step.key]) for step in steps if isinstance(step.key, HandleKey)}


def _assigned(outcome: object) -> tuple[Assigned, ...]:
    assert isinstance(outcome, tuple)
    return outcome


def _accounts_for(handle: Handle, given: Sequence[Assigned]) -> bool:
    """Whether the released addresses match the handle's counts, block by block."""
    found: dict[Network, int] = {}
    for assigned in given:
        found[assigned.block] = found.get(assigned.block, 0) + 1
    return found == dict(handle.blocks)
