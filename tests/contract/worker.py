"""A process of its own that writes to a store until it is done or killed; started by test_processes.py.

worker.py ADDRESS count N        add 1 to a shared counter N times with compare-and-swap
worker.py ADDRESS pair           write two records in one commit for ever; says each number once it is committed
"""

from __future__ import annotations

import sys

from cni_calico.datastore.interface import CommitConflict, Datastore, Write
from cni_calico.deadline import Deadline
from cni_calico.model.keys import HandleKey
from tests.contract.backends import KEYS, document, number, open_address

COUNTER, OTHER = KEYS[:2]


def count(store: Datastore, times: int) -> None:
    done = 0
    current = store.get(COUNTER, Deadline.after(60))
    while done < times:
        n = number(COUNTER, current.value) if current else 0
        try:
            value = document(COUNTER, n + 1)
            write = Write.update(current, value) if current else Write.create(COUNTER, value)
            current = store.commit([write], Deadline.after(60)).stored[0]
            done += 1
        except CommitConflict as conflict:
            current = conflict.failed[0].current


def pair(store: Datastore) -> None:
    current = store.get(COUNTER, Deadline.after(60))
    n = number(COUNTER, current.value) if current else 0
    while True:
        n += 1
        writes = [
            Write.put(COUNTER, document(COUNTER, n)),
            Write.put(OTHER, document(OTHER, n)),
            Write.create(HandleKey(f"log.{n:06}"), document(OTHER, n)),
        ]
        store.commit(writes[: store.max_commit], Deadline.after(60))
        print(n, flush=True)


if __name__ == "__main__":
    opened = open_address(sys.argv[1])
    if sys.argv[2] == "count":
        count(opened, int(sys.argv[3]))
    else:
        pair(opened)
