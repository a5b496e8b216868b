"""Resources in the output format that a user asked for.

Rule: documents in, text out; the machine-readable formats are upstream's (List documents, sorted keys in YAML).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from cni_calico.bounded import CONFIG_BYTES, read_text
from cni_calico.ctl.columns import headings_of, parse_headings, row_of
from cni_calico.ctl.tables import render_columns
from cni_calico.datastore.interface import Document
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.resources import API_VERSION

CUSTOM, TEMPLATE, TEMPLATE_FILE = "custom-columns=", "go-template=", "go-template-file="
_ORDER = ("kind", "apiVersion", "metadata", "spec", "status", "items")  # as Go's types have them
_METADATA = ("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
_CLUSTER_SPECIFIC = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation", "managedFields")


def require_format(output: str) -> None:
    """Raises InvalidConfig for an unknown output format."""
    for prefix, what in ((CUSTOM, "at least one column"), (TEMPLATE, "a template"), (TEMPLATE_FILE, "a template file")):
        if output.removesuffix("=") == prefix.removesuffix("="):
            raise InvalidConfig(f"need to specify {what}")
        if output.startswith(prefix):
            return
    if output not in ("ps", "wide", "yaml", "yml", "json", "name"):
        raise InvalidConfig(
            f"unrecognized output format '{output}'",
            details="known are ps, wide, yaml, json, name, custom-columns=..., go-template=..., go-template-file=...",
        )


def exported(document: Document) -> dict[str, Any]:
    """The document without the metadata of this cluster."""
    metadata = {k: v for k, v in (document.get("metadata") or {}).items() if k not in _CLUSTER_SPECIFIC}
    return {**document, "metadata": metadata}


class _Plain(yaml.CSafeDumper):
    """Writes repeated values in full instead of using anchors, which not every reader of manifests supports."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def render_yaml(value: Any) -> str:
    if value is None:
        return "null\n"
    return yaml.dump(value, Dumper=_Plain, default_flow_style=False, sort_keys=True, allow_unicode=True)


def render_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def listed(kind: str, documents: Sequence[Document], revision: str) -> dict[str, Any]:
    return {
        "kind": f"{kind}List",
        "apiVersion": API_VERSION,
        "metadata": {"resourceVersion": revision},
        "items": list(documents),
    }


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


def render_several(documents: Sequence[Document], output: str, *, namespaced: bool = False) -> str:
    """Resources that were requested by name: each has its own table, as in upstream."""
    if output in ("yaml", "yml", "json"):
        ordered = [_ordered(document) for document in documents]
        value = ordered[0] if len(ordered) == 1 else ordered or None
        return render_json(value) if output == "json" else render_yaml(value)
    if output.startswith((TEMPLATE, TEMPLATE_FILE)):
        return _render_template(list(documents), output)
    if output == "name":
        return render_names(documents)
    return "".join(_render_kind(str(d["kind"]), [d], output, namespaced) for d in documents)


def render_many(body: Document, output: str, *, namespaced: bool = False) -> str:
    """A list document, as ``listed`` makes it."""
    if output in ("yaml", "yml", "json"):
        return render_json(_ordered(body)) if output == "json" else render_yaml(body)
    if output.startswith((TEMPLATE, TEMPLATE_FILE)):
        return _render_template([body], output)
    if output == "name":
        return render_names(body["items"])
    return _render_kind(body["kind"].removesuffix("List"), body["items"], output, namespaced)


def _render_template(values: list[Document], output: str) -> str:
    """As in upstream, a template gets the list of what was read: each resource, or one list document."""
    from cni_calico.ctl.templates import render_template

    text = output.removeprefix(TEMPLATE)
    if output.startswith(TEMPLATE_FILE):
        path = output.removeprefix(TEMPLATE_FILE)
        try:
            text = read_text(path, limit=CONFIG_BYTES)
        except (OSError, ValueError) as e:
            cause = e.strerror if isinstance(e, OSError) and e.strerror else e
            raise InvalidConfig(f"cannot read template {path}: {cause}") from e
    return render_template(text, values)


def headings_for(kind: str, output: str, *, namespaced: bool) -> list[str]:
    """The columns of a table in this format. Raises InvalidConfig for a column that the kind does not have."""
    if output.startswith(CUSTOM):
        return parse_headings(kind, output.removeprefix(CUSTOM))
    return headings_of(kind, wide=output == "wide", namespaced=namespaced)


def _render_kind(kind: str, documents: Sequence[Document], output: str, namespaced: bool) -> str:
    headings = headings_for(kind, output, namespaced=namespaced)
    return render_columns(headings, [row_of(document, kind, headings) for document in documents])


def render_empty_table(kind: str, output: str, *, namespaced: bool) -> str:
    return _render_kind(kind, [], output, namespaced)


def render_names(documents: Sequence[Document]) -> str:
    return "".join(f"{str(d['kind']).lower()}/{d['metadata']['name']}\n" for d in documents)
