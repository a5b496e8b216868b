"""``calicoctl datastore migrate``: lock, export, unlock (import is in restore.py).

Rule: an export is a JSON document with every record in etcd's form under its etcd key, so that nothing is lost between
backends; upstream's form is made on request (upstream_export.py). A record that cannot be read stops the export: an
address missing in the export would be assigned twice after the import.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from cni_calico import __version__
from cni_calico.ctl.datastore.places import require_one_record_each
from cni_calico.ctl.datastore.upstream_export import render_upstream
from cni_calico.ctl.ipam.lost import group_of, is_kubernetes
from cni_calico.ctl.ipam.records import read_cluster
from cni_calico.ctl.output.files import write_file
from cni_calico.ctl.output.texts import render_json
from cni_calico.ctl.resources import operations
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.interface import Document, Versioned, pod_of
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode
from cni_calico.model.keys import CLUSTER, EverythingList, etcd_path

FORMAT = "cni-calico/datastore-export/v1"
IMPORTING = "cni-calico/importing"  # annotation of ClusterInformation: the digest of the export that is being imported


def lock(session: Session, arguments: Namespace) -> str:
    _set_ready(session, ready=False)
    return "Datastore locked.\n"


def unlock(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed while an import is not finished, or the records of the other API group are unlocked."""
    other = group_of(session).read_unlocked_other(session.deadline) if is_kubernetes(session) else ""
    if other:
        raise CommandFailed(
            f"cannot unlock the datastore: this cluster's records in {other} are unlocked, and with both the same "
            "address is given to two pods; lock those first"
        )
    _set_ready(session, ready=True)
    return "Datastore unlocked.\n"


def _set_ready(session: Session, *, ready: bool) -> None:
    def plan(document: Document) -> Mapping[str, Any]:
        if ready and importing(document):
            raise CommandFailed("cannot unlock the datastore: an import of it was not finished; repeat the import")
        return {**document, "spec": {**(document.get("spec") or {}), "datastoreReady": ready}}

    operations.modify(session, CLUSTER, plan)


def importing(document: Document) -> str:
    """The digest of the export that is being imported into a datastore; "" if there is none."""
    return str(((document.get("metadata") or {}).get("annotations") or {}).get(IMPORTING) or "")


def export(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed if the datastore is not locked or two records have one key, CorruptRecord for one that
    cannot be read.
    """
    spec, _ = read_cluster(session)
    if spec.get("datastoreReady") is not False:
        raise CommandFailed(
            "cannot export the datastore: Datastore is not locked. Run `calicoctl datastore migrate lock` first"
        )
    listing = session.store.list(EverythingList(), session.deadline)
    for _, why in listing.unreadable:
        raise CorruptRecord(why, details="repair or delete it, then export again")
    require_one_record_each(listing.items)
    records = {}
    for item in listing.items:
        if not is_unused(item):
            decode(item.key, item.value)
            records[item.key] = item.value
    if arguments.format == "upstream":
        text = render_upstream(records)
    else:
        body = {etcd_path(key): value for key, value in records.items()}
        text = render_json({"format": FORMAT, "version": __version__, "records": body})
    if not arguments.file:
        return text
    write_file(arguments.file, text)
    return f"Exported {len(records)} records to {arguments.file}\n"


def is_unused(item: Versioned) -> bool:
    """Whether an endpoint is only a Kubernetes pod without a network (not yet, or no longer)."""
    spec = item.value.get("spec") or {}
    return pod_of(item) is not None and not spec.get("containerID") and not spec.get("ipNetworks")
