"""PURE: values as JSON and YAML, in upstream's form.

Rule: the machine-readable texts of every command come from here; YAML is imported when it is written.
"""

from __future__ import annotations

import json
from typing import Any


def render_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def render_yaml(value: Any) -> str:
    """YAML with sorted keys; repeated values are written in full instead of as anchors, which not every reader of
    manifests supports.
    """
    if value is None:
        return "null\n"
    import yaml  # imported only if it is needed: that takes a while

    class Plain(yaml.CSafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    return yaml.dump(value, Dumper=Plain, default_flow_style=False, sort_keys=True, allow_unicode=True)
