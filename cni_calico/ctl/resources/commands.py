"""The commands that work on resources: get, create, replace, apply, validate, delete, patch, label.

Rule: each takes the session and the parsed arguments and returns the text to print.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cni_calico.bounded import parse_json
from cni_calico.ctl.input.manifests import (
    DEFAULT_NAMESPACE,
    parse_documents,
    parse_key,
    read_files,
    require_json,
    require_namespace,
)
from cni_calico.ctl.input.patching import json_patch, merge_patch
from cni_calico.ctl.input.targets import parse_target, parse_targets
from cni_calico.ctl.output.render import (
    columns_for,
    exported,
    is_table,
    list_of,
    listed,
    render_empty_table,
    render_many,
    render_several,
    require_format,
)
from cni_calico.ctl.output.tables import PackedRows
from cni_calico.ctl.output.values import is_jsonpath
from cni_calico.ctl.resources import batch, operations
from cni_calico.ctl.resources.size import describe_too_large
from cni_calico.ctl.session import CommandFailed, ResourceExists, ResourceMissing, Session
from cni_calico.datastore.interface import Document, Reading, Versioned
from cni_calico.errors import CalicoError, CorruptRecord, DatastoreForbidden, InvalidConfig
from cni_calico.ipam.overlaps import describe_overlaps
from cni_calico.model.documents.fields import brief
from cni_calico.model.keys import NAMESPACED_KINDS, PLURALS, ResourceKey, ResourceList
from cni_calico.model.validation.defaults import with_defaults

Manifest = list[tuple[ResourceKey, dict[str, Any]]]


def read_manifest(arguments: Namespace) -> Manifest:
    documents = read_files(arguments.filename, arguments.stdin, recursive=arguments.recursive)
    found = [(parse_key(document, arguments.namespace), document) for document in documents]
    if not found and not arguments.skip_empty:
        raise InvalidConfig(f"No resources specified in file {arguments.filename}")
    return found


def require_placed(key: ResourceKey, document: Document, arguments: Namespace) -> None:
    require_namespace(key.kind, document["metadata"].get("namespace"), arguments.namespace)


def key_of(kind: str, name: str, arguments: Namespace) -> ResourceKey:
    require_namespace(kind, "", arguments.namespace)
    return ResourceKey(kind, name, (arguments.namespace or DEFAULT_NAMESPACE) if kind in NAMESPACED_KINDS else "")


# -- get --------------------------------------------------------------------------------------------------------------


def get(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed if one of several is missing; its output has those that were found."""
    require_format(arguments.output)
    if arguments.filename:
        found = read_manifest(arguments)
        for key, document in found:
            require_placed(key, document, arguments)
        return _get_named(session, arguments, [key for key, _ in found])
    kinds, named = _parse_wanted(arguments)
    if arguments.output == "wide":
        _warn_of_overlaps(session, arguments, kinds, named)
    if kinds:
        return _get_lists(session, arguments, kinds)
    return _get_named(session, arguments, [key_of(kind, name, arguments) for kind, name in named])


def _warn_of_overlaps(
    session: Session, arguments: Namespace, kinds: Sequence[str], named: Sequence[tuple[str, str]]
) -> None:
    """Which of the pools that are shown overlap others: the table's columns are upstream's, so it is said beside it."""
    names = {name for kind, name in named if kind == "IPPool"}
    if names or "IPPool" in kinds:
        for name, sentence in describe_overlaps(operations.read_pools(session)).items():
            if not names or name in names:
                arguments.warn(sentence)


def _parse_wanted(arguments: Namespace) -> tuple[list[str], list[tuple[str, str]]]:
    kinds, named = parse_targets(arguments.words)
    if not kinds and not named:
        raise InvalidConfig("cannot get resources: name a kind, or a file with -f")
    for kind in dict.fromkeys([*kinds, *(kind for kind, _ in named)]):
        require_namespace(kind, "", arguments.namespace, everywhere=arguments.all_namespaces)
    if named and arguments.all_namespaces:
        raise InvalidConfig("cannot use --all-namespace flag for getting a single resource")
    return kinds, named


def wanted_kinds(arguments: Namespace) -> dict[str, frozenset[str]]:
    """The requested names of each kind; no names: all. Raises InvalidConfig."""
    kinds, named = _parse_wanted(arguments)
    if kinds:
        return dict.fromkeys(kinds, frozenset())
    return {kind: frozenset(name for other, name in named if other == kind) for kind, _ in named}


def list_key(kind: str, arguments: Namespace) -> ResourceList:
    """The resources of a kind in the requested namespaces."""
    everywhere = kind not in NAMESPACED_KINDS or arguments.all_namespaces
    return ResourceList(kind, "" if everywhere else arguments.namespace or DEFAULT_NAMESPACE)


def _get_named(session: Session, arguments: Namespace, keys: list[ResourceKey]) -> str:
    documents: list[dict[str, Any]] = []
    errors: list[CalicoError] = []
    for key in keys:
        try:
            documents.append(operations.shown_document(operations.read_resource(session, key)))
        except CalicoError as e:
            errors.append(e)
    documents = [exported(document) for document in documents] if arguments.export else documents
    text = render_several(documents, arguments.output, namespaced=bool(arguments.namespace), look=arguments.look)
    if errors:
        failed = CommandFailed("\n".join(str(e) for e in errors), output=text)
        failed.details = "; ".join(dict.fromkeys(e.details for e in errors if e.details))
        raise failed
    return text


def _get_lists(session: Session, arguments: Namespace, kinds: Sequence[str]) -> str:
    if len(kinds) == 1 and is_table(arguments.output) and _comes_in_order(session, kinds[0]):
        return _get_long_table(session, arguments, kinds[0])
    bodies = [read_list(session, arguments, kind) for kind in kinds]
    for kind, body in zip(kinds, bodies, strict=True):
        if not body["items"]:
            arguments.note(_describe_nothing(kind, arguments))
    if len(bodies) > 1 and (arguments.output in ("yaml", "yml", "json") or is_jsonpath(arguments.output)):
        return render_many(list_of([item for body in bodies for item in body["items"]]), arguments.output)
    return "".join(_render_list(body, kind, arguments) for kind, body in zip(kinds, bodies, strict=True))


def _comes_in_order(session: Session, kind: str) -> bool:
    """Whether a list is read in the order in which it is shown, and shows only what is stored: etcd keeps its keys in
    order.
    """
    return session.store.kind == "etcdv3" and kind not in operations.COMPLETED_KINDS


def _get_long_table(session: Session, arguments: Namespace, kind: str) -> str:
    """The table of a list of which only the cells that are shown are kept, printed in parts: documents of 100,000
    endpoints take half a gigabyte, their table as one text more than its cells.
    """
    namespaced = bool(arguments.all_namespaces or arguments.namespace)
    columns, rows = columns_for(kind, arguments.output, namespaced=namespaced), PackedRows()
    seen, last = Versioned(ResourceKey(kind, ""), {}, 0), ""

    def receive(item: Versioned) -> Versioned:
        nonlocal last
        assert isinstance(item.key, ResourceKey)
        before, last = last, f"{item.key.namespace}/{item.key.name}"
        if last <= before:  # it is read again from its beginning
            rows.clear()
        try:
            document = operations.shown_document(item)
        except CorruptRecord as e:
            session.note_damaged(item.key, str(e))
        else:
            rows.add(columns.row(exported(document) if arguments.export else document))
        return seen

    session.store.list(list_key(kind, arguments), session.deadline, reading=Reading(receive))
    if not rows:
        arguments.note(_describe_nothing(kind, arguments))
    for part in arguments.look.column_parts(columns.headings, rows):
        arguments.say(part)
    return ""


def _describe_nothing(kind: str, arguments: Namespace) -> str:
    if kind not in NAMESPACED_KINDS or arguments.all_namespaces:
        return f"No {kind} found."
    return f"No {kind} found in namespace {arguments.namespace or DEFAULT_NAMESPACE}; -A looks in all."


def read_list(session: Session, arguments: Namespace, kind: str) -> dict[str, Any]:
    listing = session.store.list(list_key(kind, arguments), session.deadline)
    documents = []
    for item in listing.items:
        try:
            documents.append(operations.shown_document(item))
        except CorruptRecord as e:
            session.note_damaged(item.key, str(e))
    documents = operations.complete_listing(kind, documents)
    documents = [exported(document) for document in documents] if arguments.export else documents
    return listed(kind, documents, str(listing.revision))


def _render_list(body: Document, kind: str, arguments: Namespace) -> str:
    namespaced = bool(arguments.all_namespaces or arguments.namespace)
    if is_table(arguments.output) and not body["items"]:
        return render_empty_table(kind, arguments.output, namespaced=namespaced, look=arguments.look)
    return render_many(body, arguments.output, namespaced=namespaced, look=arguments.look)


# -- write ------------------------------------------------------------------------------------------------------------


def create(session: Session, arguments: Namespace) -> str:
    skip = (ResourceExists,) if arguments.skip_exists else ()
    return _write(session, arguments, batch.CREATE, operations.create, skip)


def replace(session: Session, arguments: Namespace) -> str:
    return _write(session, arguments, batch.REPLACE, operations.replace)


def apply(session: Session, arguments: Namespace) -> str:
    return _write(session, arguments, batch.APPLY, operations.apply)


def _write(
    session: Session,
    arguments: Namespace,
    verb: batch.Verb,
    operation: Callable[..., None],
    skip: tuple[type[CalicoError], ...] = (),
) -> str:
    found = read_manifest(arguments)

    def act(i: int) -> None:
        key, document = found[i]
        require_placed(key, document, arguments)
        operation(session, key, document, checks_of(arguments))
        too_large = describe_too_large(session, key, document)
        if too_large:
            arguments.warn(too_large)

    return batch.run_batch(verb, [key for key, _ in found], act, skip=skip)


def checks_of(arguments: Namespace) -> operations.Checks:
    return operations.Checks(arguments.warn, allow_unknown=arguments.allow_unknown_fields)


def validate(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Check whether each resource could be stored, as far as that can be known without a datastore."""
    from cni_calico.model.validation.check import require_valid

    found = read_manifest(arguments)

    def act(i: int) -> None:
        key, document = found[i]
        require_placed(key, document, arguments)
        placed = with_defaults(operations.placed(key, document))
        for problem in require_valid(placed, allow_unknown=arguments.allow_unknown_fields):
            arguments.warn(problem)

    return batch.run_batch(batch.VALIDATE, [key for key, _ in found], act)


def delete(session: Session, arguments: Namespace) -> str:
    from cni_calico.ctl.resources import removal  # it imports the allocator, which nothing else here needs

    documents: dict[int, Document] = {}
    if arguments.filename:
        found = read_manifest(arguments)
        keys, documents = [key for key, _ in found], {i: document for i, (_, document) in enumerate(found)}
    else:
        keys = [key_of(kind, name, arguments) for kind, name in parse_targets(arguments.words)[1]]
        if not keys:
            raise InvalidConfig("cannot delete resources: name a kind and at least one resource, or a file with -f")

    def act(i: int) -> None:
        if i in documents:
            require_placed(keys[i], documents[i], arguments)
        removal.delete_resource(session, keys[i], force=arguments.force)

    skip = (ResourceMissing,) if arguments.skip_not_exists else ()
    said = batch.run_batch(batch.DELETE, keys, act, skip=skip)
    for key in keys:
        if why := removal.why_still_there(session, key):
            arguments.note(why)
    return said


# -- change -----------------------------------------------------------------------------------------------------------


def patch(session: Session, arguments: Namespace) -> str:
    """Types "strategic" and "merge" are the same here: no list of Calico's has a merge key."""
    key = key_of(*parse_target(arguments.words, "patch"), arguments)
    change = parse_patch(arguments.patch, arguments.type)
    try:
        operations.modify(session, key, change, checks_of(arguments))
    except CalicoError as e:
        failed = CommandFailed(f"Hit error: {e}")  # upstream's words
        failed.details = _what_may_not_be_patched(key, arguments) if isinstance(e, DatastoreForbidden) else e.details
        raise failed from e
    return f"Successfully patched 1 '{key.kind}' resource\n"


def _what_may_not_be_patched(key: ResourceKey, arguments: Namespace) -> str:
    """Where a patch belongs instead, if Kubernetes refuses it."""
    if key.kind == "WorkloadEndpoint":
        return f"in this datastore a {key.kind} is a pod: change the pod itself with kubectl"
    if key.kind == "Node":
        return f"in this datastore it is the Kubernetes node: use kubectl label node {key.name}, or kubectl annotate"
    changes = f"the patch {brief(arguments.patch)} changes {PLURALS[key.kind]}"
    return f"{changes}, which this user may not update: grant him that verb"


def parse_patch(text: str, kind: str) -> Callable[[Document], Document]:
    try:
        parsed = parse_json(text, "patch")
    except ValueError:
        documents = parse_documents(text, "patch")
        parsed = documents[0] if len(documents) == 1 else None
    else:
        require_json(parsed, "patch")
    if kind == "json" and not isinstance(parsed, dict):  # an object is merged whatever the type says, as upstream does
        return lambda document: _object(json_patch(document, parsed))
    if not isinstance(parsed, dict):
        raise InvalidConfig("cannot apply patch: expected a JSON object")
    return lambda document: _object(merge_patch(document, parsed))


def _object(value: Any) -> Document:
    if not isinstance(value, Mapping):
        raise InvalidConfig("cannot apply patch: nothing is left of the resource")
    return value


def label(session: Session, arguments: Namespace) -> str:
    *words, wanted = arguments.words or [""]
    key = key_of(*parse_target(words, "label"), arguments)
    name, equals, value = wanted.partition("=")
    if bool(equals) == arguments.remove:
        raise InvalidConfig("cannot label: give KEY=VALUE, or KEY together with --remove")
    where = " ".join(words)
    done: list[str] = []

    def plan(document: Document) -> Document:
        metadata = dict(document["metadata"])
        labels = dict(metadata.get("labels") or {})
        done[:] = [_change_label(labels, where, name, None if arguments.remove else value, arguments.overwrite)]
        return {**document, "metadata": {**metadata, "labels": labels}}

    operations.modify(session, key, plan, checks_of(arguments))
    return f"{done[0]}\n"


def _change_label(labels: dict[str, str], where: str, name: str, value: str | None, overwrite: bool) -> str:
    """``where`` is the resource as the user named it. Returns what was done, in upstream's words."""
    if value is None:
        if name not in labels:
            raise InvalidConfig(f"cannot remove label of {where}, key {name} does not exist")
        del labels[name]
        return f"Successfully removed label {name} from {where}"
    known = name in labels
    if known and labels[name] != value and not overwrite:
        refusal = f"failed to update label of {where}, key {name} is already present"
        raise InvalidConfig(f"{refusal}. please use '--overwrite' to set a new value.")
    labels[name] = value
    return f"Successfully {'updated' if known else 'set'} label {name} on {where}"
