"""An election with an etcd lease: a key that disappears if its lease is not renewed.

Rule: the holder is the creator of the key. Every transaction of the holder compares the key's create revision, so etcd
itself refuses a write that comes after the lease was lost. The key is in Calico's tree, where every role for Calico may
write, but is not a record: only other candidates read it.
"""

from __future__ import annotations

import json
import time
from typing import Any

from cni_calico import faults
from cni_calico.datastore.election import Clock, FencedStore, Held, Terms
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreError, LeaseLost

KEYS = "/calico/cni-calico/v1/"
_PRIORITY = "priority"
TAKE = faults.declare("etcd.take-lease")


class EtcdElection:
    """Raises DatastoreError, DeadlineExceeded."""

    def __init__(
        self, store: EtcdStore, name: str, holder: str, terms: Terms, *, clock: Clock = time.monotonic
    ) -> None:
        self._cluster = store.cluster
        self._key = f"{KEYS}{name}".encode()
        self._asked = f"{KEYS}{name}-asked".encode()
        self._value = json.dumps({"holder": holder, **({_PRIORITY: True} if terms.priority else {})}).encode()
        self._name, self._terms = name, terms
        self._at = f"lease {name} ({KEYS}{name})"
        self._held = Held(clock)
        self._lease = 0
        self._expires = 0.0  # by our clock: etcd may keep the lease a little longer, never shorter
        self._created = 0

    def remaining_s(self) -> float:
        return self._held.remaining_s()

    def fenced(self, store: Datastore) -> Datastore:
        guarded = store.guarded(self._guard) if isinstance(store, EtcdStore) else store
        return FencedStore(guarded, self)

    def _guard(self) -> tuple[bytes, int]:
        if not self._created:
            raise LeaseLost(f"cannot write: lease {self._name} is no longer ours")
        return self._key, self._created

    def campaign(self, deadline: Deadline) -> bool:
        asked_at, doing = self._held.clock(), f"read {self._at}"
        found = self._cluster.read("Range", pb.RangeRequest(key=self._key), doing, deadline).kvs
        if found and not found[0].lease:
            self._remove(found[0], deadline)
            found = ()
        if not self._terms.priority and self._is_asked_for(deadline):
            self._give_up(deadline)
            return False
        if found and found[0].lease != self._lease:
            if self._terms.priority and not _has_priority(found[0].value):
                self._ask(deadline)
            self._give_up(deadline)
            return False
        if not self._renew(deadline):
            self._lose()
            return False
        created = found[0].create_revision if found else self._win(deadline)
        if not created:
            self._give_up(deadline)
            return False
        self._created = created
        self._held.extend(asked_at, self._terms.lasts_s - self._terms.margin_s)
        return True

    def _is_asked_for(self, deadline: Deadline) -> bool:
        doing = f"see who asks for {self._at}"
        return bool(self._cluster.read("Range", pb.RangeRequest(key=self._asked), doing, deadline).kvs)

    def _ask(self, deadline: Deadline) -> None:
        """Write a key that lasts as long as a lease without renewal: a candidate that asked and died does not delay
        others for longer.
        """
        doing = f"ask for {self._at}"
        if self._is_asked_for(deadline):
            return
        grant = pb.LeaseGrantRequest(TTL=max(1, round(self._terms.lasts_s)))
        lease = self._cluster.read("LeaseGrant", grant, doing, deadline).ID
        request = pb.TxnRequest()
        put = pb.PutRequest(key=self._asked, value=self._value, lease=lease)
        request.success.append(pb.RequestOp(request_put=put))
        self._write(request, doing, deadline)

    def resign(self, deadline: Deadline) -> None:
        """Revoke the lease, which removes the key."""
        self._give_up(deadline)

    def _renew(self, deadline: Deadline) -> bool:
        """Get a lease, or renew ours; False: ours has expired."""
        if self._lease:
            request: Any = pb.LeaseKeepAliveRequest(ID=self._lease)
            answer = self._cluster.read("LeaseKeepAlive", request, f"renew {self._at}", deadline)
            self._expires = self._held.clock() + self._terms.lasts_s
            return bool(answer.TTL > 0)
        request = pb.LeaseGrantRequest(TTL=max(1, round(self._terms.lasts_s)))
        self._lease = self._cluster.read("LeaseGrant", request, f"get {self._at}", deadline).ID
        self._expires = self._held.clock() + self._terms.lasts_s
        return True

    def _win(self, deadline: Deadline) -> int:
        """Create the key if there is none; returns its create revision, 0 if another candidate created it.

        After a lost answer the next campaign finds the key with our lease, or no key.
        """
        request = pb.TxnRequest()
        request.compare.add(result=pb.Compare.EQUAL, target=pb.Compare.CREATE, key=self._key, create_revision=0)
        put = pb.PutRequest(key=self._key, value=self._value, lease=self._lease)
        request.success.append(pb.RequestOp(request_put=put))
        answer = self._write(request, f"take {self._at}", deadline)
        return int(answer.header.revision) if answer.succeeded else 0

    def _remove(self, found: Any, deadline: Deadline) -> None:
        """Remove a key that has no lease (from a mirror or a copy of the datastore): it would never expire."""
        request = pb.TxnRequest()
        request.compare.add(
            result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=self._key, mod_revision=found.mod_revision
        )
        request.success.append(pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=self._key)))
        self._write(request, f"free {self._at}", deadline)

    def _write(self, request: Any, doing: str, deadline: Deadline) -> Any:
        return self._cluster.transact(request, doing, deadline, TAKE)

    def _lose(self) -> int:
        self._held.give_up()
        lease, self._lease, self._created = self._lease, 0, 0
        return lease

    def _give_up(self, deadline: Deadline) -> None:
        lease = self._lose()
        if not lease or self._held.clock() > self._expires:
            return  # an expired lease is not revoked: etcd's proxy takes seconds to report that it does not exist
        try:
            request = pb.LeaseRevokeRequest(ID=lease)
            self._cluster.read("LeaseRevoke", request, f"give up {self._at}", deadline)
        except DatastoreError:
            return  # it expires by itself, a little later


def _has_priority(value: bytes) -> bool:
    try:
        found = json.loads(value)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get(_PRIORITY) is True
