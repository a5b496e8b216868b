"""What whoever releases for others asks the datastore first: how long to wait, and whether anything may be written."""

from __future__ import annotations

from cni_calico.controllers.janitor.options import CALL_S, JanitorOptions, parse_grace
from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import decode_cluster_information
from cni_calico.model.keys import CLUSTER, CONTROLLERS_DEFAULT


def read_grace_s(store: Datastore) -> float | None:
    """The janitor's grace period; None: switched off. Raises DatastoreError."""
    found = store.get(CONTROLLERS_DEFAULT, Deadline.after(CALL_S))
    usual = JanitorOptions().grace_s
    return usual if found is None else parse_grace(found.value, usual)


def is_ready(store: Datastore) -> bool:
    """Not while the datastore is being migrated or upgraded. Raises DatastoreError, CorruptRecord."""
    found = store.get(CLUSTER, Deadline.after(CALL_S))
    return found is None or decode_cluster_information(CLUSTER, found.value).datastore_ready is not False
