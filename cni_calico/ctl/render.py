"""PURE: resources in the output format that a user asked for.

Rule: documents in, text out; what upstream's machine-readable formats look like is kept (List documents, sorted keys).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from cni_calico.ctl.columns import headings_of, parse_headings, row_of
from cni_calico.ctl.tables import render_columns
from cni_calico.errors import InvalidConfig, UnsupportedField
from cni_calico.model.documents.resources import API_VERSION

Document = Mapping[str, Any]
CUSTOM = "custom-columns="
_CLUSTER_SPECIFIC = ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation", "managedFields")


def require_format(output: str) -> None:
    """Raises UnsupportedField or InvalidConfig for a format that there is none of."""
    if output.startswith(("go-template=", "go-template-file=")):
        raise UnsupportedField(
            "cannot print with go-template: this calicoctl is not written in Go",
            details="use -o json together with jq, or -o custom-columns=...",
        )
    if output not in ("ps", "wide", "yaml", "json", "name") and not output.startswith(CUSTOM):
        raise InvalidConfig(
            f"cannot print with output format {output!r}: unrecognized",
            details="known are ps, wide, yaml, json, name, custom-columns=...",
        )


def exported(document: Document) -> dict[str, Any]:
    """The document without what is particular to this cluster."""
    metadata = {k: v for k, v in (document.get("metadata") or {}).items() if k not in _CLUSTER_SPECIFIC}
    return {**document, "metadata": metadata}


class _Plain(yaml.CSafeDumper):
    """Values that occur twice are written twice: not everything that reads manifests knows anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def render_yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Plain, default_flow_style=False, sort_keys=True, allow_unicode=True)


def render_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def listed(kind: str, documents: Sequence[Document], revision: str) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": f"{kind}List",
        "metadata": {"resourceVersion": revision},
        "items": list(documents),
    }


def render_documents(value: Any, output: str) -> str:
    return render_yaml(value) if output == "yaml" else render_json(value)


def render_table(documents: Sequence[Document], output: str, *, namespaced: bool = False) -> str:
    """A table for each kind that occurs, in the order of its first resource."""
    kinds = list(dict.fromkeys(str(document["kind"]) for document in documents))
    return "".join(
        _render_kind(kind, [d for d in documents if d["kind"] == kind], output, namespaced) for kind in kinds
    )


def _render_kind(kind: str, documents: Sequence[Document], output: str, namespaced: bool) -> str:
    if output.startswith(CUSTOM):
        headings = parse_headings(kind, output.removeprefix(CUSTOM))
    else:
        headings = headings_of(kind, wide=output == "wide", namespaced=namespaced)
    return render_columns(headings, [row_of(document, kind, headings) for document in documents])


def render_empty_table(kind: str, output: str, *, namespaced: bool) -> str:
    return _render_kind(kind, [], output, namespaced)


def render_names(documents: Sequence[Document]) -> str:
    return "".join(f"{str(d['kind']).lower()}/{d['metadata']['name']}\n" for d in documents)
