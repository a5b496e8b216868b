"""A host's status keys in etcd, which other programs watch: one key that expires unless renewed, and one that stays."""

from __future__ import annotations

from typing import Any

from cni_calico import faults
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.deadline import Deadline

PREFIX = "/calico/felix/v2/no-region/host/"
WRITE = faults.declare("etcd.host-status")


class HostStatusKeys:
    """The two keys of one host; for one thread. ``write`` raises DatastoreError, DeadlineExceeded."""

    def __init__(self, store: EtcdStore, host: str) -> None:
        self._cluster = store.cluster
        self._host = host
        self._lease, self._lasts_s = 0, 0

    def write(self, value: bytes, lasts_s: int, deadline: Deadline) -> None:
        """Write ``status`` for ``lasts_s`` seconds, and ``last_reported_status`` permanently."""
        doing = f"write the status of host {self._host} below {PREFIX}"
        lease = self._renew(lasts_s, doing, deadline)
        request = pb.TxnRequest()
        for name, under in (("status", lease), ("last_reported_status", 0)):
            put = pb.PutRequest(key=f"{PREFIX}{self._host}/{name}".encode(), value=value, lease=under)
            request.success.append(pb.RequestOp(request_put=put))
        self._cluster.transact(request, doing, deadline, WRITE)

    def _renew(self, lasts_s: int, doing: str, deadline: Deadline) -> int:
        """A lease that lasts from now on."""
        if self._lease and lasts_s == self._lasts_s:
            keep: Any = pb.LeaseKeepAliveRequest(ID=self._lease)
            if self._cluster.read("LeaseKeepAlive", keep, doing, deadline).TTL > 0:
                return self._lease
        self._lease = 0
        self._lease = self._cluster.read("LeaseGrant", pb.LeaseGrantRequest(TTL=lasts_s), doing, deadline).ID
        self._lasts_s = lasts_s
        return self._lease
