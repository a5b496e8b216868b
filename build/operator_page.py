"""Prints the table of docs/from-operator.md from that of the converter: `python -m build.operator_page`."""

from __future__ import annotations

from cni_calico.ctl.convert.fields import FIELDS


def render_table() -> str:
    """The rows, as a table in Markdown."""
    lines = ["| field of the Installation | becomes | |", "|---|---|---|"]
    for field in FIELDS:
        passes = f" (`{'`, `'.join(field.unless)}` passes)" if field.unless else ""
        lines.append(f"| `{field.path}` | {field.becomes}{passes} | {field.text} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_table(), end="")
