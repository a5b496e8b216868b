"""Which operations of a refused transaction the kernel does not accept.

Rule: nothing is changed to find out: the kernel is asked about parts of the transaction (PacketFilter.check). A part is
always the transaction's beginning, because an operation may need those before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from errno import EAGAIN, EINTR, ENOBUFS, ENOENT, ENOMEM, EPERM

from cni_calico.deadline import Deadline
from cni_calico.errors import RulesRefused
from cni_calico.kernel.filter.interface import PacketFilter
from cni_calico.netfilter.tables import AddVerdicts, Operation

TRANSIENT = (0, ENOMEM, ENOBUFS, EAGAIN, EINTR, EPERM)  # errors whose reason is not the request

RefusedOperation = tuple[Operation, str]  # with the reason


def find_refused(
    kernel: PacketFilter, operations: Sequence[Operation], error: RulesRefused, deadline: Deadline
) -> list[RefusedOperation]:
    """At least one of the operations that the kernel refuses; of a map's new entries those that are refused by
    themselves. Empty if the kernel, when only asked, accepts all of them. Raises RulesRefused for a transient reason,
    RulesUnknown, DeadlineExceeded.
    """

    def accepts(some: Sequence[Operation]) -> bool:
        try:
            kernel.check(some, deadline)
        except RulesRefused as e:
            if e.errno in TRANSIENT:
                raise
            return False
        return True

    index, why = error.index, str(error)
    if not 0 <= index < len(operations):
        if accepts(operations):
            return []
        index = _first(len(operations), lambda count: not accepts(operations[:count])) - 1
    found = [(one, why) for one in _apart(operations[index], operations[:index], accepts)]
    for i, errno in error.others:
        if errno != ENOENT and not isinstance(operations[i], AddVerdicts):  # that may be a consequence
            found.append((operations[i], f"cannot change the packet filter's rules: {os.strerror(errno)}"))
    return found


def _first(most: int, holds: Callable[[int], bool]) -> int:
    """The smallest number from 1 to ``most`` for which ``holds`` is true, as it is for all numbers above that one."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _apart(
    operation: Operation, before: Sequence[Operation], accepts: Callable[[Sequence[Operation]], bool]
) -> list[Operation]:
    """A map's new entries: the single ones that are refused; otherwise the operation itself."""
    if not isinstance(operation, AddVerdicts):
        return [operation]

    def search(keys: Sequence[bytes]) -> list[bytes]:
        part = replace(operation, verdicts={key: operation.verdicts[key] for key in keys})
        if accepts([*before, part]):
            return []
        if len(keys) == 1:
            return list(keys)
        half = len(keys) // 2
        return search(keys[:half]) + search(keys[half:])

    found = search(sorted(operation.verdicts))
    return [replace(operation, verdicts={key: operation.verdicts[key]}) for key in found] or [operation]
