"""Stored records as the graph takes them: reduced, refused, or to be decoded when it is their turn.

Rule: one malformed record holds up no other one of its listing: whatever is wrong with it, it is refused and not gone.
Of two equal sets of labels among what is pending there is one copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.datastore.interface import Versioned, pod_of
from cni_calico.datastore.unread import UnreadDocument
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.fields import Wrong
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.policing.feed.changes import FedChange, PutAside, Refusal, Undecoded, Unread, read_stand_in
from cni_calico.nodeagent.policing.feed.weights import LARGE, weigh_document, weigh_text
from cni_calico.nodeagent.view.claims import is_claimed
from cni_calico.policy.confirmed import PodClaim, pod_claim
from cni_calico.policy.decode import decoding_record, reduce_record, reducing
from cni_calico.policy.plain_workloads import plain_workload
from cni_calico.policy.records import POLICY_KINDS, Labelled, labelled_workload
from cni_calico.policy.sets import NETWORK_SET
from cni_calico.policy.steps import Steps, finish

PolicyJudge = Callable[[str, Mapping[str, Any]], tuple[int, bool]]
LabelPairs = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Fed:
    """A record as it enters the graph, and what could not be converted. ``claim``: only an annotation names its
    addresses.
    """

    record: FedChange
    left_out: tuple[str, ...] = ()
    claim: PodClaim | None = None


def _may_wait(key: ResourceKey) -> bool:
    return key.kind in POLICY_KINDS or (key.kind == NETWORK_SET and bool(key.namespace))


class RecordDecoder:
    """For any thread. ``judge(kind, spec)``: how many bytes a policy needs, about, and whether its document may stay in
    memory until then. ``keeps_text(size)``: whether a text of so many bytes may.
    """

    def __init__(self, node: str, judge: PolicyJudge, keeps_text: Callable[[int], bool] = lambda size: True) -> None:
        self._node, self._judge, self._keeps_text = node, judge, keeps_text
        self._guard = threading.Lock()
        self._shared: dict[LabelPairs, LabelPairs] = {}

    def forget_shared(self) -> None:
        """What was pending has been taken."""
        with self._guard:
            self._shared = {}

    def decode(self, item: Versioned, *, again: bool = False) -> Fed:
        """Large policies are decoded later, and what came unread is read later: they would hold up the others of their
        listing. Raises CorruptRecord.

        ``again``: there is room for it.
        """
        key = item.key
        if isinstance(item.value, UnreadDocument):
            if self._keeps_text(item.value.size) and not again:
                return Fed(PutAside(item, weigh_text(item.value.size)))
            item = replace(item, value=item.value.read())
        if isinstance(key, ResourceKey) and key.kind == "WorkloadEndpoint":
            pod = pod_of(item)
            plain = plain_workload(key, item.value, self._node) if pod is None or not is_claimed(pod) else None
            return finish(self.decoding(item)) if plain is None else Fed(self._with_shared_labels(plain))
        spec = item.value.get("spec") if isinstance(key, ResourceKey) and _may_wait(key) else None
        if not isinstance(key, ResourceKey) or not isinstance(spec, dict):
            return finish(self.decoding(item))
        needs, is_kept = self._judge(key.kind, spec)
        if not is_kept and not again:
            return Fed(Unread(needs, None if key.kind == NETWORK_SET else read_stand_in(key, item.value)))
        if key.kind == NETWORK_SET:
            return finish(self.decoding(item))
        weight = weigh_document(spec)
        return Fed(Undecoded(item, weight, needs)) if weight > LARGE else finish(self.decoding(item))

    def decoding(self, item: Versioned) -> Steps[Fed]:
        """A rule of a large policy at each step. Raises CorruptRecord."""
        key = item.key
        assert isinstance(key, ResourceKey)
        try:
            record, left_out = yield from decoding_record(key, item.value)
            if isinstance(record, WorkloadEndpoint):
                pod = pod_of(item)
                claim = pod_claim(record) if pod is not None and is_claimed(pod) and record.ip_networks else None
                is_here = record.node == self._node
                return Fed(reduce_record(key, record) if is_here else self._reduced(record), (), claim)
            return Fed(None if record is None else (yield from reducing(key, record)), left_out)
        except CorruptRecord:
            raise
        except Wrong as e:
            return Fed(Refusal(str(e)))
        except Exception as e:  # one malformed record must not hold up all others of its listing
            return Fed(Refusal(f"cannot be understood: {type(e).__name__}: {e}"))

    def _reduced(self, endpoint: WorkloadEndpoint) -> Labelled | None:
        labelled = labelled_workload(endpoint)
        return None if labelled is None else self._with_shared_labels(labelled)

    def _with_shared_labels(self, labelled: Labelled) -> Labelled:
        with self._guard:
            labels = self._shared.setdefault(labelled.labels, labelled.labels)
        if labels is labelled.labels:
            return labelled
        return Labelled(labels, labelled.profiles, labelled.addresses, labelled.nets, labelled.ports)
