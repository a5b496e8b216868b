"""Prints the part of docs/compatibility.md about Felix's parameters and fields without effect from the tables in the
code: `python -m build.compatibility_page` writes it into the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cni_calico.daemon.settings_table import settings_of
from cni_calico.model.validation.felix_fields import KNOWN
from cni_calico.model.validation.kept_fields import KEPT
from cni_calico.nodeagent.context.configurations import RESOURCE_NAMES
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.context.legacy import ACCESS
from cni_calico.nodeagent.context.unused import TABLE

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
BEGIN, END = "### Parameters of Felix\n", "### The network configuration\n"
_HEAD = f"""\
{BEGIN}
Made from the tables in the code (`python -m build.compatibility_page`); do not edit. *Used*: it has upstream's effect
([node-environment.md](node-environment.md) says which). *Accepted*: nothing is lost, whatever the value, and nothing is
logged. *Never applies*: it is about something that is not there, and nothing is logged unless it says so. *Not there*:
a value that asks for it is named in the log and in `calicoctl node status`. *Refused*: by name. A name that upstream
does not know either is called unknown. The same names are parameters as annotations `config.projectcalico.org/NAME` of
a FelixConfiguration, which win over its fields.

| variable | field of a FelixConfiguration | here |
|---|---|---|
"""
_KEPT_HEAD = """\

### Fields without effect

Fields of other kinds that are stored, shown and kept, and that nothing here acts on.

| kind | field | here |
|---|---|---|
"""


def render_part() -> str:
    """The part of the page, from its heading to the next one."""
    fields = {RESOURCE_NAMES.get(field.lower(), field.lower()): field for field in KNOWN}
    rows = list(_used(fields))
    rows.append(_row(ACCESS, fields, "used: the variable without `FELIX_` wins; for a bare `calico-node -felix`"))
    rows += [_row(row.names.split(), fields, f"{row.what}: {row.here}") for row in TABLE]
    kept = (f"| {kind} | {_quoted(names.split())} | {here} |\n" for kind, names, here in KEPT)
    return _HEAD + "".join(rows) + _KEPT_HEAD + "".join(kept) + "\n"


def _used(fields: dict[str, str]) -> Iterable[str]:
    sections: dict[str, list[str]] = {}
    ours: list[str] = []
    for item in settings_of(FelixSettings):
        group = ours if item.meaning.startswith(("Not a parameter of upstream's", "Ours")) else None
        (sections.setdefault(item.section, []) if group is None else group).append(item.name)
    for section, names in sections.items():
        yield _row(names, fields, f"used: {section.lower()}")
    yield _row(ours, fields, "ours: upstream's schema has no such fields; annotations do")


def _row(names: Iterable[str], fields: dict[str, str], here: str) -> str:
    listed = list(names)
    shown = [fields[name.lower()] for name in listed if name.lower() in fields]
    return f"| {_quoted(f'FELIX_{name.upper()}' for name in listed)} | {_quoted(shown) or '-'} | {here} |\n"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def with_part(page: str) -> str:
    """A page with the part as the tables have it."""
    return page[: page.index(BEGIN)] + render_part() + page[page.index(END) :]


if __name__ == "__main__":
    PAGE.write_text(with_part(PAGE.read_text()))
