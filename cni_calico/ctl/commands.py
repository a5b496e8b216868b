"""The commands that work on resources: get, create, replace, apply, delete, patch, label.

Rule: each takes the session and the parsed arguments and returns the text to print.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.ctl import batch, removal, resources
from cni_calico.ctl.kinds import parse_kind
from cni_calico.ctl.manifests import DEFAULT_NAMESPACE, parse_documents, parse_key, read_files
from cni_calico.ctl.patching import json_patch, merge_patch
from cni_calico.ctl.render import (
    exported,
    listed,
    render_documents,
    render_empty_table,
    render_names,
    render_table,
    require_format,
)
from cni_calico.ctl.session import ResourceExists, ResourceMissing, Session
from cni_calico.errors import CorruptRecord, InvalidConfig
from cni_calico.model.keys import NAMESPACED_KINDS, ResourceKey, ResourceList

Document = Mapping[str, Any]


def _manifest(arguments: Namespace) -> list[tuple[ResourceKey, dict[str, Any]]]:
    documents = read_files(arguments.filename, arguments.stdin, recursive=arguments.recursive)
    found = [(parse_key(document, arguments.namespace), document) for document in documents]
    if not found and not arguments.skip_empty:
        raise InvalidConfig(f"No resources specified in file {arguments.filename}")
    return found


def _named_keys(arguments: Namespace) -> list[ResourceKey]:
    kind = parse_kind(arguments.kind)
    namespace = (arguments.namespace or DEFAULT_NAMESPACE) if kind in NAMESPACED_KINDS else ""
    return [ResourceKey(kind, name, namespace) for name in arguments.names]


def _one_key(arguments: Namespace) -> ResourceKey:
    arguments.names = [arguments.name]
    return _named_keys(arguments)[0]


# -- get --------------------------------------------------------------------------------------------------------------


def get(session: Session, arguments: Namespace) -> str:
    require_format(arguments.output)
    if arguments.filename:
        keys = [key for key, _ in _manifest(arguments)]
    elif not arguments.kind:
        raise InvalidConfig("cannot get resources: name a kind, or a file with -f")
    elif not arguments.names:
        return _get_list(session, arguments, parse_kind(arguments.kind))
    else:
        keys = _named_keys(arguments)
    documents = [resources.shown_document(resources.read_resource(session, key)) for key in keys]
    documents = [exported(document) for document in documents] if arguments.export else documents
    if arguments.output in ("yaml", "json"):
        return render_documents(documents[0] if len(documents) == 1 else documents, arguments.output)
    return _render(documents, arguments)


def _get_list(session: Session, arguments: Namespace, kind: str) -> str:
    namespace = ""
    if kind in NAMESPACED_KINDS and not arguments.all_namespaces:
        namespace = arguments.namespace or DEFAULT_NAMESPACE
    listing = session.store.list(ResourceList(kind, namespace), session.deadline)
    documents = []
    for item in listing.items:
        try:
            documents.append(resources.shown_document(item))
        except CorruptRecord as e:
            session.note_damaged(item.key, str(e))
    documents = [exported(document) for document in documents] if arguments.export else documents
    if arguments.output in ("yaml", "json"):
        return render_documents(listed(kind, documents, str(listing.revision)), arguments.output)
    if not documents:
        empty = arguments.output == "name"
        return "" if empty else render_empty_table(kind, arguments.output, namespaced=arguments.all_namespaces)
    return _render(documents, arguments)


def _render(documents: list[dict[str, Any]], arguments: Namespace) -> str:
    if arguments.output == "name":
        return render_names(documents)
    return render_table(documents, arguments.output, namespaced=arguments.all_namespaces)


# -- write ------------------------------------------------------------------------------------------------------------


def create(session: Session, arguments: Namespace) -> str:
    found = _manifest(arguments)
    skip = (ResourceExists,) if arguments.skip_exists else ()
    act = _each(session, found, arguments, resources.create)
    return batch.run_batch(batch.CREATE, [key for key, _ in found], act, skip=skip)


def replace(session: Session, arguments: Namespace) -> str:
    found = _manifest(arguments)
    return batch.run_batch(
        batch.REPLACE, [key for key, _ in found], _each(session, found, arguments, resources.replace)
    )


def apply(session: Session, arguments: Namespace) -> str:
    found = _manifest(arguments)
    return batch.run_batch(batch.APPLY, [key for key, _ in found], _each(session, found, arguments, resources.apply))


def _each(
    session: Session,
    found: list[tuple[ResourceKey, dict[str, Any]]],
    arguments: Namespace,
    operation: Callable[..., None],
) -> Callable[[int], None]:
    def act(i: int) -> None:
        key, document = found[i]
        operation(session, key, document, arguments.warn)

    return act


def delete(session: Session, arguments: Namespace) -> str:
    if arguments.filename:
        keys = [key for key, _ in _manifest(arguments)]
    elif not arguments.kind or not arguments.names:
        raise InvalidConfig("cannot delete resources: name a kind and at least one resource, or a file with -f")
    else:
        keys = _named_keys(arguments)
    skip = (ResourceMissing,) if arguments.skip_not_exists else ()
    return batch.run_batch(batch.DELETE, keys, lambda i: removal.delete_resource(session, keys[i]), skip=skip)


# -- change -----------------------------------------------------------------------------------------------------------


def patch(session: Session, arguments: Namespace) -> str:
    """Types "strategic" and "merge" are the same here: no list of Calico's has a merge key."""
    key = _one_key(arguments)
    change = _parse_patch(arguments.patch, arguments.type)
    resources.modify(session, key, change, arguments.warn)
    return f"Successfully patched 1 '{key.kind}' resource\n"


def _parse_patch(text: str, kind: str) -> Callable[[Document], Document]:
    try:
        parsed = json.loads(text)
    except ValueError:
        documents = parse_documents(text, "patch")
        parsed = documents[0] if len(documents) == 1 else None
    if kind == "json":
        return lambda document: _object(json_patch(document, parsed))
    if not isinstance(parsed, dict):
        raise InvalidConfig("cannot apply patch: expected a JSON object")
    return lambda document: _object(merge_patch(document, parsed))


def _object(value: Any) -> Document:
    if not isinstance(value, Mapping):
        raise InvalidConfig("cannot apply patch: nothing is left of the resource")
    return value


def label(session: Session, arguments: Namespace) -> str:
    key = _one_key(arguments)
    name, equals, value = arguments.label.partition("=")
    if bool(equals) == arguments.remove:
        raise InvalidConfig("cannot label: give KEY=VALUE, or KEY together with --remove")
    done: list[str] = []

    def plan(document: Document) -> Document:
        metadata = dict(document["metadata"])
        labels = dict(metadata.get("labels") or {})
        done[:] = [_change_label(labels, key, name, None if arguments.remove else value, arguments.overwrite)]
        return {**document, "metadata": {**metadata, "labels": labels}}

    resources.modify(session, key, plan, arguments.warn)
    return f"{done[0]}\n"


def _change_label(labels: dict[str, str], key: ResourceKey, name: str, value: str | None, overwrite: bool) -> str:
    where = f"{key.kind} {key.name}"
    if value is None:
        if name not in labels:
            raise InvalidConfig(f"cannot remove label: {where} has no label {name}")
        del labels[name]
        return f"Successfully removed label {name} from {where}"
    known = name in labels
    if known and labels[name] != value and not overwrite:
        raise InvalidConfig(
            f"cannot set label: {where} has label {name}={labels[name]} already", details="use --overwrite"
        )
    labels[name] = value
    return f"Successfully {'updated' if known else 'set'} label {name} on {where}"
