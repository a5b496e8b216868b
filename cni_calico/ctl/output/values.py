"""A command's findings as JSON, as YAML, or what a JSONPath selects of them. Rule: all commands have the same formats;
their tables they make themselves.
"""

from __future__ import annotations

from typing import Any

from cni_calico.ctl.input.files import read_file
from cni_calico.ctl.output.texts import render_json, render_yaml
from cni_calico.errors import InvalidConfig

TABLE = "table"
JSONPATH, JSONPATH_FILE, JSONPATH_JSON = "jsonpath=", "jsonpath-file=", "jsonpath-as-json="
KNOWN = f"{TABLE}, json, yaml, jsonpath=..., jsonpath-file=..., jsonpath-as-json=..."


def is_jsonpath(output: str) -> bool:
    return output.startswith((JSONPATH, JSONPATH_FILE, JSONPATH_JSON))


def require_value_format(output: str) -> None:
    """Raises InvalidConfig for a format that ``render_value`` does not know."""
    if output not in (TABLE, "json", "yaml", "yml") and not is_jsonpath(output):
        raise InvalidConfig(f"unrecognized output format '{output}'", details=f"known are {KNOWN}")


def render_value(value: Any, output: str) -> str:
    """``value``, which consists of JSON's types, in a format other than TABLE. Raises InvalidConfig."""
    if is_jsonpath(output):
        return render_selected(value, output)
    return render_json(value) if output == "json" else render_yaml(value)


def render_selected(value: Any, output: str) -> str:
    """What the JSONPath of ``output`` selects. Raises InvalidConfig."""
    from cni_calico.ctl.output.jsonpath import render_jsonpath, select_values

    kind, _, text = output.partition("=")
    if not text:
        raise InvalidConfig(f"need to specify what {kind} selects")
    if f"{kind}=" == JSONPATH_FILE:
        text = read_file(text, what="template")
    if f"{kind}=" == JSONPATH_JSON:
        return render_json(select_values(text.strip("{}"), value))
    return render_jsonpath(text, value)
