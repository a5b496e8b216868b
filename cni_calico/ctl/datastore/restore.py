"""``calicoctl datastore migrate import``: an export into a datastore that holds no pools and addresses yet.

Rule: the datastore is first locked and marked with the export's digest, and the mark is removed last: an interrupted
import can be repeated, and until then the datastore cannot be unlocked. If Kubernetes has its own object for a record
(Node, Pod), Calico's part is written to that object; records without a place are reported.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cni_calico.bounded import EXPORT_BYTES, parse_json
from cni_calico.ctl.datastore.migrate import FORMAT, IMPORTING, importing
from cni_calico.ctl.datastore.owners import in_order_of_owners, owners_of, with_owners
from cni_calico.ctl.datastore.places import require_own_places
from cni_calico.ctl.datastore.upstream_export import ExportedRecords, is_upstreams, parse_upstream
from cni_calico.ctl.input.files import read_file
from cni_calico.ctl.ipam.lost import group_of, is_kubernetes, kubernetes_store
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.interface import CommitConflict, Document, Versioned, Write
from cni_calico.errors import CalicoError, DatastoreUnsupported, InvalidConfig, OutcomeUnknown, RecordRefused
from cni_calico.model.documents.codec import decode, describe
from cni_calico.model.keys import CLUSTER, BlockList, Key, ResourceKey, ResourceList, parse_path
from cni_calico.model.kubernetes.nodes import inherited_labels
from cni_calico.model.names import sha1_hex

Skipped = list[tuple[Key, str]]
_CHUNK = 50
_SOME_UID = "00000000-0000-4000-8000-000000000000"  # of owners that a dry run does not make


def parse_export(text: str, source: str) -> ExportedRecords:
    """The records of an export, ours or upstream's; all of them can be read. Raises InvalidConfig, CorruptRecord."""
    if is_upstreams(text):
        found = parse_upstream(text, source)
        for named, value in found.items():
            decode(named, value)
        return dict(found)
    try:
        body = parse_json(text, source)
    except ValueError as e:
        raise InvalidConfig(f"cannot import {source}: {e}") from e
    if not isinstance(body, dict) or body.get("format") != FORMAT or not isinstance(body.get("records"), dict):
        raise InvalidConfig(f"cannot import {source}: it was not written by 'calicoctl datastore migrate export'")
    records: ExportedRecords = {}
    for path, document in body["records"].items():
        key = parse_path(path)
        if key is None:
            raise InvalidConfig(f"cannot import {source}: {path} is not the key of a record")
        decode(key, document)
        records[key] = document
    return records


def load(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed if the datastore already holds pools or blocks, unless they are from this import."""
    name = arguments.filename
    text = arguments.stdin if name == "-" else read_file(name, limit=EXPORT_BYTES)
    records = _with_identity(session, parse_export(text, name))
    digest = sha1_hex(text)
    _require_empty(session, digest)
    if is_kubernetes(session):
        place_of = group_of(session).choose(session.deadline).place_of
        require_own_places(place_of, (key for key in records if not _is_derived(key)))
    if arguments.dry_run == "server":
        return _rehearse(session, records)
    skipped = _write_all(session, records, digest)
    missing = {key for key, _ in skipped if key in records}
    lines = [f"Imported {len(records) - len(missing)} records; the datastore is locked."]
    lines += [f"Skipped {describe(key)}: {why}" for key, why in skipped]
    return "\n".join([*lines, "Run the `calicoctl datastore migrate unlock` command to use it."]) + "\n"


def _with_identity(session: Session, records: ExportedRecords) -> ExportedRecords:
    """Upstream's export has neither UIDs nor creation times, so those resources are new."""
    now = session.now()
    out: ExportedRecords = {}
    for key, document in records.items():
        metadata = document.get("metadata")
        if isinstance(key, ResourceKey) and isinstance(metadata, Mapping) and not metadata.get("uid"):
            document = {**document, "metadata": {"creationTimestamp": now, **metadata, "uid": session.uid()}}
        out[key] = document
    return out


def _require_empty(session: Session, digest: str) -> None:
    cluster = session.store.get(CLUSTER, session.deadline)
    begun = "" if cluster is None else importing(cluster.value)
    if begun == digest:
        return
    for listing in (ResourceList("IPPool"), BlockList()):
        if session.store.list(listing, session.deadline).items:
            cause = "the datastore holds pools or addresses already"
            raise CommandFailed(
                f"cannot import: {cause}" + (", from another import that was not finished" * bool(begun))
            )


# -- writing ----------------------------------------------------------------------------------------------------------


def _write_all(session: Session, records: ExportedRecords, digest: str) -> Skipped:
    """Lock and mark first, remove the mark last. Returns the records for which the backend has no place."""
    cluster = records.get(CLUSTER) or {"metadata": {"name": CLUSTER.name}, "spec": {}}
    _put(session, [(CLUSTER, _locked(cluster, digest))])
    kubernetes = session.store.kind == "kubernetes"
    derived = {key: None for key in records if kubernetes and _is_derived(key)}
    skipped: Skipped = []
    rest = {key: records[key] for key in records if key != CLUSTER and key not in derived}
    for portion in in_order_of_owners(rest) if kubernetes else (rest,):
        if kubernetes:
            portion = _with_present_owners(session, portion, skipped)
        _put(session, list(portion.items()))
    for key in derived:
        why = _apply_derived(session, key, records[key])
        if why:
            skipped.append((key, why))
    _put(session, [(CLUSTER, _locked(cluster, ""))])
    return skipped


def _with_present_owners(session: Session, records: Mapping[Key, Document], skipped: Skipped) -> ExportedRecords:
    """The records as owned by what was written before them, which has other UIDs here."""
    owners = {owner for key, document in records.items() for owner in owners_of(key, document)}
    found = {owner: session.store.get(owner, session.deadline) for owner in owners}
    uids = {owner: item.uid for owner, item in found.items() if item is not None}
    out: ExportedRecords = {}
    for key, document in records.items():
        out[key], lost = with_owners(key, document, uids)
        skipped += [(owner, f"as owner of {describe(key)}: it is not there") for owner in lost]
    return out


def _rehearse(session: Session, records: ExportedRecords) -> str:
    """What the API server would say of each record; only Kubernetes can be asked. Raises CommandFailed."""
    if not is_kubernetes(session):
        return f"{len(records)} records can be imported.\n"
    store, refused = kubernetes_store(session), []
    asked = [key for key in records if not _is_derived(key)]
    uids = {key: _SOME_UID for key in records if isinstance(key, ResourceKey)}
    for key in asked:
        document, _ = with_owners(key, records[key], uids)  # as they are written, with owners that are there
        try:
            store.rehearse_create(key, document, session.deadline)
        except (RecordRefused, DatastoreUnsupported) as e:
            refused.append(f"Refused {describe(key)}: {e.message}")
    text = f"{len(asked) - len(refused)} of {len(asked)} records can be imported.\n"
    if refused:
        raise CommandFailed(
            f"cannot import: {len(refused)} records are refused",
            output="\n".join([text.rstrip(), *refused, ""]),
        )
    return text


def _locked(document: Document, digest: str) -> dict[str, Any]:
    """ClusterInformation of a locked datastore; with a digest, also marked as being imported into."""
    metadata = dict(document.get("metadata") or {})
    annotations = {
        name: value for name, value in (metadata.pop("annotations", None) or {}).items() if name != IMPORTING
    }
    if digest:
        annotations[IMPORTING] = digest
    if annotations:
        metadata["annotations"] = annotations
    return {**document, "metadata": metadata, "spec": {**(document.get("spec") or {}), "datastoreReady": False}}


def _put(session: Session, documents: Sequence[tuple[Key, Document]]) -> None:
    """Write in transactions if the backend has them, otherwise several at a time."""
    store, deadline = session.store, session.deadline
    create_each = store.commit_each
    for chunk in _chunks(documents, _CHUNK if create_each else max(1, min(_CHUNK, store.max_commit))):
        writes = [Write.put(key, document) for key, document in chunk]
        if create_each is not None:  # there a put is two requests, and most records do not exist yet
            outcomes = create_each([Write.create(key, document) for key, document in chunk], deadline)
            _raise_other_than_taken(outcomes)
            for write, outcome in zip(writes, outcomes, strict=True):
                if isinstance(outcome, CalicoError):
                    store.commit([write], deadline)
            continue
        store.commit(writes, deadline)


def _raise_other_than_taken(outcomes: Sequence[object]) -> None:
    """Existing records are overwritten afterwards; any other error ends the import."""
    for outcome in outcomes:
        if isinstance(outcome, CalicoError) and not isinstance(outcome, CommitConflict | OutcomeUnknown):
            raise outcome


def _chunks(items: Sequence[tuple[Key, Document]], size: int) -> Iterator[Sequence[tuple[Key, Document]]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


# -- records that are Kubernetes' own objects -------------------------------------------------------------------------


def _is_derived(key: Key) -> bool:
    return isinstance(key, ResourceKey) and key.kind in ("Node", "WorkloadEndpoint", "Profile")


def _apply_derived(session: Session, key: Key, document: Document) -> str:
    """Why a record was skipped; "" if its object was updated."""
    assert isinstance(key, ResourceKey)
    if key.kind == "Profile":
        return "Kubernetes derives its profiles"
    current = session.store.get(key, session.deadline)
    if current is None:
        return "there is no such node" if key.kind == "Node" else "there is no such pod on its node"
    wanted = _plan_node(current, document) if key.kind == "Node" else _plan_endpoint(current, document)
    if wanted is None:
        return "the pod has its own network by now"
    try:
        session.store.commit([Write.update(current, wanted)], session.deadline)
    except CommitConflict:
        return "it keeps changing"
    except RecordRefused as e:
        return e.message
    return ""


def _plan_node(current: Versioned, document: Document) -> Document:
    """The Kubernetes node with what Calico recorded about it.

    Its own labels and annotations (BGP peers are selected by them) are added to those of the Kubernetes node, whose
    name, labels and status stay.
    """
    spec = {**(document.get("spec") or {}), "orchRefs": current.value["spec"]["orchRefs"]}
    status = {**(current.value.get("status") or {}), **(document.get("status") or {})}
    metadata, there = document.get("metadata") or {}, current.value["metadata"]
    inherited = inherited_labels(document)  # stored once, from the Kubernetes node as it was then
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name not in inherited}
    annotations = {**(metadata.get("annotations") or {}), **(there.get("annotations") or {})}
    merged = {**there, "labels": {**labels, **(there.get("labels") or {})}, "annotations": annotations}
    return {**current.value, "metadata": merged, "spec": spec, "status": status}


def _plan_endpoint(current: Versioned, document: Document) -> Document | None:
    """The pod's endpoint as it was recorded; None if another container owns it by now."""
    ours = (document.get("spec") or {}).get("containerID")
    there = current.value["spec"].get("containerID")
    if there not in (None, "", ours):
        return None
    return {**current.value, "spec": {**current.value["spec"], **(document.get("spec") or {})}}
