"""YAML streams as people write manifests.

Rule: dates stay texts, a key given twice is an error.
"""

from __future__ import annotations

from typing import Any

import yaml

from cni_calico.bounded import parse_yaml


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


def parse_stream(text: str, source: str) -> list[Any]:
    """The documents of a stream. Raises ValueError, RecursionError, OutOfBounds."""
    try:
        return parse_yaml(text, source, _Loader)
    except yaml.YAMLError as e:
        raise ValueError(str(e)) from e
