"""Resource documents from files, directories and stdin.

Rule: the results are JSON-shaped (texts as keys, no dates) and name their apiVersion, kind and metadata; lists are
split into their items. A key given twice is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cni_calico.bounded import MANIFEST_BYTES, parse_json
from cni_calico.ctl.input.directories import find_files
from cni_calico.ctl.input.files import read_file
from cni_calico.ctl.input.nearest import did_you_mean
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import NAMESPACED_KINDS, PLURALS, ResourceKey

DEFAULT_NAMESPACE = "default"


def parse_documents(text: str, source: str) -> list[dict[str, Any]]:
    """The documents of a YAML stream (JSON is YAML). Raises InvalidConfig."""
    try:
        found = [document for document in _parse(text, source) if document is not None]
    except (ValueError, RecursionError) as e:
        raise InvalidConfig(f"cannot read {source}: {e}") from e
    documents = []
    for document in found:
        for item in document if isinstance(document, list) else [document]:
            if not isinstance(item, dict):
                raise InvalidConfig(f"cannot read {source}: expected resources, got {item!r}")
            require_json(item, source)
            documents.append(item)
    return documents


def _parse(text: str, source: str) -> list[Any]:
    """Texts that look like JSON are read as JSON: that is faster, and YAML does not have JSON's surrogate pairs."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [parse_json(text, source, _object)]
        except json.JSONDecodeError:
            pass  # YAML's flow style, or several documents
    from cni_calico.ctl.input.yaml_documents import parse_stream  # its import takes a while

    return parse_stream(text, source)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"key {twice!r} is given twice")
    return made


def require_json(value: Any, source: str, at: str = "") -> None:
    """Raises InvalidConfig for what JSON cannot express, giving its place."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidConfig(f"cannot read {source}: {at or 'document'} has {key!r} as a key: quote it")
            _require_text(key, source, at or "document")
            require_json(item, source, f"{at}.{key}".lstrip("."))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            require_json(item, source, f"{at}[{i}]")
    elif isinstance(value, str):
        _require_text(value, source, at)
    elif not (value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))):
        raise InvalidConfig(f"cannot read {source}: {at} is {value!r}, which JSON cannot express")


def _require_text(text: str, source: str, at: str) -> None:
    """Half of a surrogate pair (U+D800 in JSON) is not a character, and no datastore can store it."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidConfig(f"cannot read {source}: {at} has {text!a}, which is not text in UTF-8")


def split_lists(documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The documents with lists (kind List, IPPoolList, ...) replaced by their items."""
    for document in documents:
        kind = document.get("kind")
        items = document.get("items")
        if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
            for item in items:
                if isinstance(item, dict):
                    yield {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion"), **item}
        else:
            yield document


def parse_key(document: Mapping[str, Any], namespace: str) -> ResourceKey:
    """The identity of a document; ``namespace`` is for a document without one. Raises InvalidConfig."""
    kind, metadata = document.get("kind"), document.get("metadata")
    if not isinstance(kind, str) or kind not in PLURALS or document.get("apiVersion") != API_VERSION:
        near = did_you_mean(str(kind), PLURALS) if kind not in PLURALS else ""
        raise InvalidConfig(
            f"cannot use resource: unknown resource type (Kind: {kind}, Version: {document.get('apiVersion')})",
            details=f"{near} apiVersion must be {API_VERSION}, kind one of its kinds".lstrip(),
        )
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InvalidConfig(f"cannot use {kind} resource: metadata.name must be given")
    given = metadata.get("namespace") or namespace or DEFAULT_NAMESPACE
    return ResourceKey(kind, metadata["name"], str(given) if kind in NAMESPACED_KINDS else "")


def require_namespace(kind: str, given: object, namespace: str, *, everywhere: bool = False) -> None:
    """``given`` is the document's namespace, the others are -n and -A. Raises InvalidConfig (upstream's words)."""
    if kind in NAMESPACED_KINDS:
        if everywhere and namespace:
            raise InvalidConfig("cannot use both --namespace and --all-namespaces flags at the same time")
        if given and namespace and given != namespace:
            raise InvalidConfig(f"resource namespace does not match client namespace. {given} != {namespace}")
    elif given:
        raise InvalidConfig(
            f"namespace should not be specified for a non-namespaced resource. {kind} is not a namespaced resource"
        )
    elif namespace or everywhere:
        raise InvalidConfig(f"{kind} is not namespaced")


def read_files(name: str, stdin: str, *, recursive: bool = False) -> list[dict[str, Any]]:
    """The documents of a file, of a directory's files, or of ``stdin`` (name "-"). Raises InvalidConfig."""
    if name == "-":
        return list(split_lists(parse_documents(stdin, "standard input")))
    documents: list[dict[str, Any]] = []
    for path in find_files(name, recursive=recursive):
        text = read_file(path, limit=MANIFEST_BYTES)
        documents.extend(split_lists(parse_documents(text, path)))
    return documents
