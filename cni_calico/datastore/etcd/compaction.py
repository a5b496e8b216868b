"""Compaction of etcd, by the same protocol and key as Kubernetes' API servers, which may share the etcd. Rule: a key's
version serves as the lock: the participant that increments it compacts to the revision that etcd had when the
participant read the key in the round before. So in each round only one participant compacts, and only revisions older
than a round.
"""

from __future__ import annotations

from typing import Any

from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.deadline import Deadline
from cni_calico.errors import Compacted

KEY = b"compact_rev_key"


class EtcdCompaction:
    """One participant; call ``step`` once per period."""

    def __init__(self, store: EtcdStore) -> None:
        self._cluster = store.cluster
        self._version = 0
        self._revision = 0

    def step(self, deadline: Deadline) -> int:
        """The revision that was compacted to; 0 if another participant does it, or it is too early.

        Raises DatastoreError, DeadlineExceeded. After a lost answer the next step finds another version and waits.
        """
        request = pb.TxnRequest()
        request.compare.add(result=pb.Compare.EQUAL, target=pb.Compare.VERSION, key=KEY, version=self._version)
        put = pb.PutRequest(key=KEY, value=str(self._revision).encode())
        request.success.append(pb.RequestOp(request_put=put))
        request.failure.append(pb.RequestOp(request_range=pb.RangeRequest(key=KEY)))
        answer = self._cluster.write("Txn", request, f"take a turn at compacting etcd (key {KEY.decode()})", deadline)
        before, self._revision = self._revision, int(answer.header.revision)
        if not answer.succeeded:
            self._version = _version(answer)
            return 0
        self._version += 1
        if not before:
            return 0
        try:
            self._cluster.read("Compact", pb.CompactionRequest(revision=before), "compact etcd", deadline)
        except Compacted:
            return 0  # compacted further already, by hand or by etcd's own setting
        return before


def _version(answer: Any) -> int:
    kvs = answer.responses[0].response_range.kvs
    return int(kvs[0].version) if kvs else 0
