"""Resources in the output format that a user asked for.

Rule: documents in, text out; the machine-readable formats are upstream's (List documents, sorted keys in YAML).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cni_calico.ctl.input.files import read_file
from cni_calico.ctl.output.columns import Columns, columns_of, parse_columns
from cni_calico.ctl.output.looks import PLAIN, PlainLook
from cni_calico.ctl.output.texts import render_json, render_yaml
from cni_calico.ctl.output.values import (
    JSONPATH,
    JSONPATH_FILE,
    JSONPATH_JSON,
    is_jsonpath,
    render_selected,
)
from cni_calico.datastore.interface import Document
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.resources import API_VERSION

CUSTOM, TEMPLATE, TEMPLATE_FILE = "custom-columns=", "go-template=", "go-template-file="
_WITH_MORE = {
    CUSTOM: "at least one column",
    JSONPATH: "a JSONPath",
    JSONPATH_FILE: "a file with a JSONPath",
    JSONPATH_JSON: "a JSONPath",
    TEMPLATE: "a template",
    TEMPLATE_FILE: "a template file",
}
_ORDER = ("kind", "apiVersion", "metadata", "spec", "status", "items")  # in the spelling of Go's types
_METADATA = ("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
_CLUSTER_SPECIFIC = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation", "managedFields")


def require_format(output: str) -> None:
    """Raises InvalidConfig for an unknown output format."""
    for prefix, what in _WITH_MORE.items():
        if output.removesuffix("=") == prefix.removesuffix("="):
            raise InvalidConfig(f"need to specify {what}")
        if output.startswith(prefix):
            return
    if output not in ("ps", "wide", "yaml", "yml", "json", "name"):
        raise InvalidConfig(
            f"unrecognized output format '{output}'",
            details="known are ps, wide, yaml, json, name, " + ", ".join(f"{prefix}..." for prefix in _WITH_MORE),
        )


def is_table(output: str) -> bool:
    return output in ("ps", "wide") or output.startswith(CUSTOM)


def exported(document: Document) -> dict[str, Any]:
    """The document without the metadata of this cluster."""
    metadata = {k: v for k, v in (document.get("metadata") or {}).items() if k not in _CLUSTER_SPECIFIC}
    return {**document, "metadata": metadata}


def listed(kind: str, documents: Sequence[Document], revision: str) -> dict[str, Any]:
    return {
        "kind": f"{kind}List",
        "apiVersion": API_VERSION,
        "metadata": {"resourceVersion": revision},
        "items": list(documents),
    }


def list_of(documents: Sequence[Document]) -> dict[str, Any]:
    """One document of several resources, of any kinds."""
    return {"kind": "List", "apiVersion": "v1", "items": list(documents)}


def _ordered(document: Document) -> dict[str, Any]:
    """The document with its keys in upstream's order: kind first."""
    out = {name: document[name] for name in _ORDER if name in document}
    out.update(document)
    metadata = out.get("metadata")
    if isinstance(metadata, Mapping):
        first = {name: metadata[name] for name in _METADATA if name in metadata}
        out["metadata"] = {**first, **metadata}
    if isinstance(out.get("items"), list):
        out["items"] = [_ordered(item) for item in out["items"]]
    return out


def render_several(
    documents: Sequence[Document], output: str, *, namespaced: bool = False, look: PlainLook = PLAIN
) -> str:
    """Resources that were requested by name: each has its own table, as in upstream."""
    if output in ("yaml", "yml", "json"):
        ordered = [_ordered(document) for document in documents]
        value = ordered[0] if len(ordered) == 1 else ordered or None
        return render_json(value) if output == "json" else render_yaml(value)
    if is_jsonpath(output):
        return render_selected(documents[0] if len(documents) == 1 else list_of(documents), output)
    if output.startswith((TEMPLATE, TEMPLATE_FILE)):
        return _render_template(list(documents), output)
    if output == "name":
        return render_names(documents)
    return "".join(_render_kind(str(d["kind"]), [d], output, namespaced, look) for d in documents)


def render_many(body: Document, output: str, *, namespaced: bool = False, look: PlainLook = PLAIN) -> str:
    """A list document, as ``listed`` makes it."""
    if output in ("yaml", "yml", "json"):
        return render_json(_ordered(body)) if output == "json" else render_yaml(body)
    if is_jsonpath(output):
        return render_selected(body, output)
    if output.startswith((TEMPLATE, TEMPLATE_FILE)):
        return _render_template([body], output)
    if output == "name":
        return render_names(body["items"])
    return _render_kind(body["kind"].removesuffix("List"), body["items"], output, namespaced, look)


def _render_template(values: list[Document], output: str) -> str:
    """As in upstream, a template gets the list of what was read: each resource, or one list document."""
    from cni_calico.ctl.output.templates import render_template

    text = output.removeprefix(TEMPLATE)
    if output.startswith(TEMPLATE_FILE):
        text = read_file(output.removeprefix(TEMPLATE_FILE), what="template")
    return render_template(text, values)


def columns_for(kind: str, output: str, *, namespaced: bool) -> Columns:
    """The columns of a table in this format. Raises InvalidConfig for a column that the kind does not have."""
    if output.startswith(CUSTOM):
        return parse_columns(kind, output.removeprefix(CUSTOM))
    return columns_of(kind, wide=output == "wide", namespaced=namespaced)


def _render_kind(kind: str, documents: Sequence[Document], output: str, namespaced: bool, look: PlainLook) -> str:
    columns = columns_for(kind, output, namespaced=namespaced)
    return look.columns(columns.headings, [columns.row(document) for document in documents])


def render_empty_table(kind: str, output: str, *, namespaced: bool, look: PlainLook = PLAIN) -> str:
    return _render_kind(kind, [], output, namespaced, look)


def render_names(documents: Sequence[Document]) -> str:
    return "".join(f"{str(d['kind']).lower()}/{d['metadata']['name']}\n" for d in documents)
