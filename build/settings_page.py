"""Prints docs/node-environment.md from the tables of settings: `python -m build.settings_page`."""

from __future__ import annotations

from collections.abc import Iterable

from cni_calico.daemon.settings_table import settings_of
from cni_calico.nodeagent.aws.credentials import VARIABLES
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.context.settings import DATASTORE_VARIABLES, WITHOUT_EFFECT, NodeSettings

SettingRow = tuple[str, str, str, str]

_HEAD = """\
# Environment of calico-node

Made from the tables in `cni_calico/nodeagent/` (`python -m build.settings_page`); do not edit.

A variable that is empty counts as not set. A wrong value of a variable in the first part stops start-up before anything
is written, and the message names every wrong variable. On a node that was set up before, the agent continues as if that
variable were not set, and reports it; but a wrong `CALICO_NETWORKING_BACKEND` or `USE_POD_CIDR` stops the agent too.
"""
_FELIX_HEAD = """\
## FELIX_ parameters

Each is a variable `FELIX_<NAME>` (any case) or a field of a FelixConfiguration. The variable wins over
FelixConfiguration `node.<name>`, that over one whose `nodeSelector` selects the node by its labels, that over
`default`, that over the built-in value. Of several that select a node only the oldest counts; a change of labels acts
at once. In a FelixConfiguration the annotation `config.projectcalico.org/<NAME>`, with the text of a variable, wins
over the field. A wrong value is reported in the log and the next source is used. Unknown names are reported too, and
upstream's parameters where a value asks for something that is not there
([compatibility.md](compatibility.md#parameters-of-felix)).
"""


_AWS_HEAD = """\
## Credentials

Read only while `awsSrcDstCheck` is Enable or Disable ([node.md](node.md#ec2s-check-of-sources-and-destinations)).
"""


def render_page() -> str:
    """The whole page."""
    parts = [_HEAD, *_sections("##", NodeSettings)]
    parts.append(_table("## Datastore", DATASTORE_VARIABLES))
    parts += [_AWS_HEAD, _table("### AWS", VARIABLES)]
    parts.append("## Without effect\n\n" + "".join(f"- `{n}`: {why}.\n" for n, why in WITHOUT_EFFECT.items()))
    parts += [_FELIX_HEAD, *_sections("###", FelixSettings)]
    return "\n".join(parts)


def _sections(level: str, cls: type[object]) -> list[str]:
    sections: dict[str, list[SettingRow]] = {}
    for item in settings_of(cls):
        row = (item.name, item.kind.schema, item.shown_default, item.meaning)
        sections.setdefault(item.section, []).append(row)
    return [_table(f"{level} {section}", rows) for section, rows in sections.items()]


def _table(heading: str, rows: Iterable[SettingRow]) -> str:
    lines = [f"{heading}\n", "| name | accepts | default | meaning |", "|---|---|---|---|"]
    for name, schema, default, meaning in rows:
        shown = f"`{default}`" if default and " " not in default else default
        lines.append(f"| `{name}` | {schema} | {shown} | {meaning} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_page(), end="")
