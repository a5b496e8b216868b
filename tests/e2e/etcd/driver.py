"""A client of an etcd cluster, run in a namespace of its own while tests break members; says a line of JSON a step.

    driver.py CONFIG write     number records one after the other, with a counter in the same commit
    driver.py CONFIG watch     say the number of every record that appears
    driver.py CONFIG leader    the URL of the leader
    driver.py CONFIG once      one commit: how it ended, and after how long

CONFIG: the fields of an EtcdConfig, in JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from cni_calico.datastore.etcd.config import parse_endpoints
from cni_calico.datastore.etcd.credentials import read_credentials
from cni_calico.datastore.etcd.link import EtcdLink
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdConfig, EtcdStore
from cni_calico.datastore.interface import CommitConflict, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, OutcomeUnknown
from cni_calico.model.keys import HandleKey, HandleList

COUNTER = HandleKey("counter")
PAUSE = threading.Event()  # between attempts of a client that outlives broken members


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def member(store: EtcdStore) -> str:
    link = store._cluster._link
    return str(link.endpoint) if link else ""


def read_counter(store: EtcdStore) -> Versioned | None:
    """However long it takes; says every failed attempt."""
    while True:
        began = time.monotonic()
        try:
            return store.get(COUNTER, Deadline.after(20))
        except CalicoError as e:
            say(step="read", error=type(e).__name__, text=str(e), s=time.monotonic() - began)
            PAUSE.wait(0.05)


def value_of(current: Versioned | None) -> int:
    return int(current.value["n"]) if current else 0


def write(store: EtcdStore) -> None:
    current = read_counter(store)
    while True:
        n = value_of(current) + 1
        counter = Write.update(current, {"n": n}) if current else Write.create(COUNTER, {"n": n})
        began = time.monotonic()
        try:
            done = store.commit([counter, Write.create(HandleKey(f"log.{n}"), {"n": n})], Deadline.after(20))
            current = done.stored[0]
            say(step="wrote", n=n, member=member(store), s=time.monotonic() - began)
        except CommitConflict as e:  # a write whose answer was lost came through after all
            current = next(f.current for f in e.failed if f.key == COUNTER)
            say(step="late", n=value_of(current))
        except CalicoError as e:
            say(step="write", n=n, error=type(e).__name__, text=str(e), s=time.monotonic() - began)
            PAUSE.wait(0.05)
            current = read_counter(store)
            certain = not isinstance(e, OutcomeUnknown)
            say(step="settled", applied=value_of(current) == n, lie=certain and value_of(current) == n)


def watch(store: EtcdStore) -> None:
    listing, opened = store.list(HandleList(), Deadline.after(20)), 0
    for n in sorted(value_of(v) for v in listing.items if v.key != COUNTER):
        say(step="saw", n=n)
    say(step="watching")
    revision = listing.revision
    while True:
        try:
            with store.watch(HandleList(), revision) as changes:
                opened += 1
                while True:
                    for event in changes.next(5.0):
                        revision = event.revision
                        if event.key != COUNTER:
                            say(step="saw", n=event.value["n"])
        except CalicoError as e:
            say(step="watch", error=type(e).__name__, text=str(e), opened=opened)
            PAUSE.wait(0.05)


def leader(config: EtcdConfig) -> None:
    credentials = read_credentials(config)
    for endpoint in parse_endpoints(config):
        link = EtcdLink(endpoint, credentials)
        try:
            status = link.call("Status", pb.StatusRequest(), 2.0)
            if status.leader == status.header.member_id:
                say(step="leader", url=str(endpoint))
                return
        except Exception as e:
            say(step="leader", error=str(e))
        finally:
            link.close()


def once(store: EtcdStore) -> None:
    began = time.monotonic()
    try:
        store.commit([Write.create(HandleKey(f"once.{time.monotonic_ns()}"), {})], Deadline.after(60))
        say(step="once", error="", s=time.monotonic() - began)
    except CalicoError as e:
        say(step="once", error=type(e).__name__, text=str(e), s=time.monotonic() - began)


if __name__ == "__main__":
    chosen = EtcdConfig(**json.loads(sys.argv[1]))
    if sys.argv[2] == "leader":
        leader(chosen)
    else:
        {"write": write, "watch": watch, "once": once}[sys.argv[2]](EtcdStore(chosen))
