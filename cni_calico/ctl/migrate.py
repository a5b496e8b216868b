"""``calicoctl datastore migrate``: lock, export, import, unlock.

Rule: an export is a JSON document with every record in etcd's form under its etcd key, so that nothing is lost between
backends; an import goes into a datastore without addresses and pools, and leaves it locked.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cni_calico import __version__
from cni_calico.ctl import resources
from cni_calico.ctl.files import write_file
from cni_calico.ctl.ipam_records import read_cluster
from cni_calico.ctl.render import render_json
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.cas import update
from cni_calico.datastore.client import Document, Versioned
from cni_calico.errors import InvalidConfig
from cni_calico.model.codec import decode, describe
from cni_calico.model.keys import BlockList, EverythingList, Key, ResourceKey, ResourceList, etcd_path, parse_path

FORMAT = "cni-calico/datastore-export/v1"
CLUSTER = ResourceKey("ClusterInformation", "default")


def lock(session: Session, arguments: Namespace) -> str:
    _set_ready(session, ready=False)
    return "Datastore locked.\n"


def unlock(session: Session, arguments: Namespace) -> str:
    _set_ready(session, ready=True)
    return "Datastore unlocked.\n"


def _set_ready(session: Session, *, ready: bool) -> None:
    def plan(document: Document) -> Mapping[str, Any]:
        return {**document, "spec": {**(document.get("spec") or {}), "datastoreReady": ready}}

    resources.modify(session, CLUSTER, plan)


def _require_locked(session: Session, doing: str) -> None:
    spec, _ = read_cluster(session)
    if spec.get("datastoreReady") is not False:
        raise CommandFailed(f"cannot {doing}: Datastore is not locked. Run `calicoctl datastore migrate lock` first")


# -- export -----------------------------------------------------------------------------------------------------------


def export(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed when the datastore is not locked, CorruptRecord for a record that cannot be read."""
    _require_locked(session, "export the datastore")
    records = {}
    for item in session.store.list(EverythingList(), session.deadline).items:
        decode(item.key, item.value)
        records[etcd_path(item.key)] = item.value
    text = render_json({"format": FORMAT, "version": __version__, "records": records})
    if not arguments.file:
        return text
    write_file(arguments.file, text)
    return f"Exported {len(records)} records to {arguments.file}\n"


# -- import -----------------------------------------------------------------------------------------------------------


def parse_export(text: str, source: str) -> dict[Key, Mapping[str, Any]]:
    """The records of an export, each of which can be read. Raises InvalidConfig, CorruptRecord."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise InvalidConfig(f"cannot import {source}: {e}") from e
    if not isinstance(body, dict) or body.get("format") != FORMAT or not isinstance(body.get("records"), dict):
        raise InvalidConfig(f"cannot import {source}: it was not written by 'calicoctl datastore migrate export'")
    records: dict[Key, Mapping[str, Any]] = {}
    for path, document in body["records"].items():
        key = parse_path(path)
        if key is None:
            raise InvalidConfig(f"cannot import {source}: {path} is no key of a record")
        decode(key, document)
        records[key] = document
    return records


def load(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed for a datastore that holds pools or blocks already."""
    name = arguments.filename
    if name == "-":
        text = arguments.stdin
    else:
        try:
            text = Path(name).read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise InvalidConfig(f"cannot read {name}: {getattr(e, 'strerror', None) or e}") from e
    records = parse_export(text, name)
    for listing in (ResourceList("IPPool"), BlockList()):
        if session.store.list(listing, session.deadline).items:
            raise CommandFailed("cannot import: the datastore holds pools or addresses already")
    skipped = _write_all(session, records)
    lines = [f"Imported {len(records) - len(skipped)} records; the datastore is locked."]
    lines += [f"Skipped {describe(key)}: {why}" for key, why in skipped]
    return "\n".join([*lines, "Run the `calicoctl datastore migrate unlock` command to use it."]) + "\n"


def _write_all(session: Session, records: Mapping[Key, Mapping[str, Any]]) -> list[tuple[Key, str]]:
    """The lock first. What a backend has no place for (Kubernetes derives nodes, endpoints, profiles) is returned."""
    kubernetes = session.store.identity.startswith("kubernetes:")
    skipped: list[tuple[Key, str]] = []
    for key in sorted(records, key=lambda key: key != CLUSTER):
        if kubernetes and isinstance(key, ResourceKey) and key.kind in ("Node", "WorkloadEndpoint", "Profile"):
            skipped.append((key, f"Kubernetes has its own {key.kind}s"))
            continue
        document = _locked(records[key]) if key == CLUSTER else records[key]
        _put(session, key, document)
    return skipped


def _locked(document: Mapping[str, Any]) -> dict[str, Any]:
    return {**document, "spec": {**(document.get("spec") or {}), "datastoreReady": False}}


def _put(session: Session, key: Key, document: Mapping[str, Any]) -> None:
    def change(current: Versioned | None) -> Document:
        return document

    update(session.store, key, change, session.deadline)
