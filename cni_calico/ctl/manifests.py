"""Resource documents from files, directories and stdin.

Rule: what leaves here is JSON-shaped (texts as keys, no dates) and names its apiVersion, kind and metadata; lists are
taken apart. YAML's dates stay texts, a key given twice is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import NAMESPACED_KINDS, PLURALS, ResourceKey

SUFFIXES = (".yaml", ".yml", ".json")
DEFAULT_NAMESPACE = "default"


class _Loader(yaml.CSafeLoader):
    """YAML without dates and without keys given twice."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_documents(text: str, source: str) -> list[dict[str, Any]]:
    """The documents of a YAML stream (JSON is YAML). Raises InvalidConfig."""
    try:
        found = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise InvalidConfig(f"cannot read {source}: {e}") from e
    documents = []
    for document in found:
        for item in document if isinstance(document, list) else [document]:
            if not isinstance(item, dict):
                raise InvalidConfig(f"cannot read {source}: expected resources, got {item!r}")
            _require_json(item, source, "")
            documents.append(item)
    return documents


def _require_json(value: Any, source: str, at: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidConfig(f"cannot read {source}: {at or 'document'} has {key!r} as a key: quote it")
            _require_json(item, source, f"{at}.{key}".lstrip("."))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _require_json(item, source, f"{at}[{i}]")
    elif not (
        value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))
    ):
        raise InvalidConfig(f"cannot read {source}: {at} is {value!r}, which JSON cannot say")


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


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
    """The identity of a document; ``namespace`` is for one that names none. Raises InvalidConfig."""
    kind, metadata = document.get("kind"), document.get("metadata")
    if kind not in PLURALS or document.get("apiVersion") != API_VERSION:
        raise InvalidConfig(
            f"cannot use resource: unknown resource type (Kind: {kind}, Version: {document.get('apiVersion')})",
            details=f"apiVersion must be {API_VERSION}, kind one of its kinds",
        )
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise InvalidConfig(f"cannot use {kind} resource: metadata.name must be given")
    given = metadata.get("namespace") or namespace or DEFAULT_NAMESPACE
    return ResourceKey(str(kind), metadata["name"], str(given) if kind in NAMESPACED_KINDS else "")


def read_files(name: str, stdin: str, *, recursive: bool = False) -> list[dict[str, Any]]:
    """The documents of a file, of a directory's files, or of ``stdin`` (name "-"). Raises InvalidConfig."""
    if name == "-":
        return list(split_lists(parse_documents(stdin, "standard input")))
    path = Path(name)
    if path.is_dir():
        found = path.rglob("*") if recursive else path.glob("*")
        paths = sorted(p for p in found if p.suffix in SUFFIXES and p.is_file())
    else:
        paths = [path]
    documents: list[dict[str, Any]] = []
    for one in paths:
        try:
            text = one.read_text()
        except (OSError, UnicodeDecodeError) as e:
            raise InvalidConfig(f"cannot read {one}: {getattr(e, 'strerror', None) or e}") from e
        documents.extend(split_lists(parse_documents(text, str(one))))
    return documents
