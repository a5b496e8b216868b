"""An election with a Lease of coordination.k8s.io, as Kubernetes' own components do it.

Rule: clocks of different hosts are never compared: a lease has expired if it has not changed for its duration, by the
observer's own clock. Every write is compare-and-swap against the lease that was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.datastore.election import Clock, FencedStore, Held, Terms
from cni_calico.datastore.interface import Datastore
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import quote
from cni_calico.deadline import Deadline
from cni_calico.model.timestamps import micro_time

_ROOT = "/apis/coordination.k8s.io/v1"
# annotations of the Lease: the candidate that asks a holder without priority for it; whether the holder has priority
ASKED, PRIORITY = "cni-calico.io/asked-by", "cni-calico.io/priority"


class KubernetesElection:
    """``holder`` must be different in every process. Raises DatastoreError, DeadlineExceeded."""

    def __init__(
        self,
        api: KubernetesAPI,
        namespace: str,
        name: str,
        holder: str,
        terms: Terms,
        *,
        clock: Clock = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._collection = f"{_ROOT}/namespaces/{quote(namespace)}/leases"
        self._path = f"{self._collection}/{quote(name)}"
        self._name, self._holder, self._terms, self._now = name, holder, terms, now
        self._held = Held(clock)
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0
        self._left_to = ""

    def remaining_s(self) -> float:
        return self._held.remaining_s()

    def fenced(self, store: Datastore) -> Datastore:
        return FencedStore(store, self)

    def campaign(self, deadline: Deadline) -> bool:
        asked_at = self._held.clock()
        lease = self._api.get(self._path, deadline, f"read lease {self._name}")
        if lease is None:
            return self._write("POST", self._collection, self._plan({}), asked_at, deadline)
        annotations = (lease.get("metadata") or {}).get("annotations") or {}
        if not self._terms.priority and self._leaves(lease, str(annotations.get(ASKED) or ""), deadline):
            return False
        if not self._may_win(lease.get("spec") or {}, asked_at):
            self._held.give_up()
            if self._terms.priority and not annotations.get(PRIORITY) and not annotations.get(ASKED):
                self._ask(lease, deadline)
            return False
        return self._write("PUT", self._path, self._plan(lease), asked_at, deadline)

    def _leaves(self, lease: Mapping[str, Any], asked_by: str, deadline: Deadline) -> bool:
        """Whether to leave the lease to a candidate with priority that asks for it: give it up, or not take it at the
        first look.

        A candidate that asked and died does not delay others for longer.
        """
        if not asked_by:
            self._left_to = ""
            return False
        first, self._left_to = asked_by != self._left_to, asked_by
        holder = (lease.get("spec") or {}).get("holderIdentity")
        if holder == self._holder:
            self.resign(deadline)
            return True
        if first:
            self._held.give_up()
        return first

    def _ask(self, lease: Mapping[str, Any], deadline: Deadline) -> None:
        metadata = lease.get("metadata") or {}
        annotations = {**(metadata.get("annotations") or {}), ASKED: self._holder}
        body = {**lease, "metadata": {**metadata, "annotations": annotations}}
        self._api.send(
            ApiRequest("PUT", self._path, f"ask for lease {self._name}", body=body, expect=(404, 409)), deadline
        )

    def resign(self, deadline: Deadline) -> None:
        """Clear the lease's holder, if it is still us."""
        self._held.give_up()
        lease = self._api.get(self._path, deadline, f"read lease {self._name}")
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._holder:
            return
        spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        doing = f"give up lease {self._name}"
        self._api.send(ApiRequest("PUT", self._path, doing, body={**lease, "spec": spec}, expect=(404, 409)), deadline)

    def _may_win(self, spec: Mapping[str, Any], now: float) -> bool:
        """Whether the lease is ours, free, or has not been renewed for its duration."""
        holder = spec.get("holderIdentity") or ""
        seen = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        lasts_s = spec.get("leaseDurationSeconds")
        if not isinstance(lasts_s, int):
            lasts_s = self._terms.lasts_s
        return holder in ("", self._holder) or now - self._seen_at > lasts_s

    def _plan(self, lease: Mapping[str, Any]) -> dict[str, Any]:
        old = lease.get("spec") or {}
        ours = old.get("holderIdentity") == self._holder
        now = micro_time(self._now())
        spec = {
            **old,
            "holderIdentity": self._holder,
            "leaseDurationSeconds": max(1, round(self._terms.lasts_s)),
            "renewTime": now,
            "acquireTime": old.get("acquireTime") if ours and old.get("acquireTime") else now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if ours or not lease else 1),
        }
        metadata = dict(lease.get("metadata") or {"name": self._name})
        annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in (ASKED, PRIORITY)}
        metadata["annotations"] = {**annotations, **({PRIORITY: "true"} if self._terms.priority else {})}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _write(self, method: str, path: str, lease: Mapping[str, Any], asked_at: float, deadline: Deadline) -> bool:
        # the lease was another candidate's and is gone; but if it cannot be created because its namespace is missing,
        # that is an error
        expect = (409,) if method == "POST" else (404, 409)
        reply = self._api.send(
            ApiRequest(method, path, f"write lease {self._name}", body=lease, expect=expect), deadline
        )
        if reply.status >= 400:  # another candidate has taken it; the next look shows which
            self._held.give_up()
            return False
        spec = reply.document.get("spec") or {}
        self._seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        self._seen_at = self._held.clock()
        self._held.extend(asked_at, self._terms.lasts_s - self._terms.margin_s)
        return True
