"""Batches: items that arrive while a batch is under way become the next batch.

Rule: one batch at a time. The caller whose item comes first in a batch carries it out for all of them, so no separate
thread is needed and there is no delay if nobody else is waiting. Every caller gets its own result or its own error.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Generic, TypeVar

from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded

BatchItem = TypeVar("BatchItem")
BatchResult = TypeVar("BatchResult")


class _Slot(Generic[BatchItem, BatchResult]):
    __slots__ = ("error", "item", "leads", "outcomes", "wake")

    def __init__(self, item: BatchItem) -> None:
        self.item = item
        self.outcomes: list[BatchResult] = []  # the outcome, once there is one
        self.error: BaseException | None = None
        self.leads = False
        self.wake = allocate_lock()  # released once: when the item is done, or when it leads the next batch
        self.wake.acquire()


class Batcher(Generic[BatchItem, BatchResult]):
    """``run(items)`` returns an outcome or an exception for each item, in order; if it raises, all of them get that
    error.
    """

    def __init__(
        self, run: Callable[[Sequence[BatchItem]], Sequence[BatchResult | BaseException]], *, limit: int
    ) -> None:
        self._run = run
        self._limit = limit
        self._guard = allocate_lock()
        self._waiting: deque[_Slot[BatchItem, BatchResult]] = deque()
        self._busy = False
        self.sizes: list[int] = [0] * (limit + 1)  # the number of batches of each size

    @property
    def waiting(self) -> int:
        """How many items wait for the batch that is under way."""
        return len(self._waiting)

    def submit(self, item: BatchItem, deadline: Deadline, doing: str) -> BatchResult:
        """The outcome for ``item``. Raises the exception that ``run`` returned for it; DeadlineExceeded if the item was
        in no batch before that.
        """
        slot: _Slot[BatchItem, BatchResult] = _Slot(item)
        with self._guard:
            self._waiting.append(slot)
            lead = not self._busy
            if lead:
                self._busy = True
        if lead or self._await(slot, deadline, doing):
            self._lead()
        if slot.error is not None:
            raise slot.error
        return slot.outcomes[0]

    def _await(self, slot: _Slot[BatchItem, BatchResult], deadline: Deadline, doing: str) -> bool:
        """Wait until the item is done (False) or leads the next batch (True)."""
        if not slot.wake.acquire(timeout=max(deadline.remaining_s(), 0.001)):
            with self._guard:
                if slot in self._waiting and not slot.leads:
                    self._waiting.remove(slot)
                    raise DeadlineExceeded(f"cannot {doing}: the deadline passed while others were served")
            slot.wake.acquire()  # its batch is under way, so the outcome will come
        return slot.leads

    def _lead(self) -> None:
        with self._guard:
            batch = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
        self.sizes[len(batch)] += 1
        try:
            for slot, outcome in zip(batch, self._run([slot.item for slot in batch]), strict=True):
                if isinstance(outcome, BaseException):
                    slot.error = outcome
                else:
                    slot.outcomes.append(outcome)
        except BaseException as e:
            for slot in batch:
                slot.error = own_error(e)
        finally:
            self._finish(batch)

    def _finish(self, batch: Sequence[_Slot[BatchItem, BatchResult]]) -> None:
        with self._guard:
            if self._waiting:
                heir = self._waiting[0]
                heir.leads = True
                heir.wake.release()
            else:
                self._busy = False
        for slot in batch[1:]:  # the first one is the caller that has just carried it out
            slot.wake.release()


def own_error(error: BaseException) -> BaseException:
    """A copy of an error for one of several callers: each adds its own trace and details to it."""
    try:
        return copy(error)
    except Exception:  # its class cannot be called with its arguments alone
        return error
