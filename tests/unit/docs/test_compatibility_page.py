"""docs/compatibility.md has every name: those that the code knows, and upstream's that it does not."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterable
from pathlib import Path

import pytest

from cni_calico.ctl.command_line.arguments import build_parser, leaves
from cni_calico.daemon.settings_table import settings_of
from cni_calico.errors import InvalidConfig
from cni_calico.model.validation.felix_fields import KNOWN
from cni_calico.model.validation.kept_fields import KEPT
from cni_calico.model.validation.known_fields import known_fields
from cni_calico.nodeagent import flags
from cni_calico.nodeagent.context.configurations import RESOURCE_NAMES
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.legacy import ACCESS, require_supported
from cni_calico.nodeagent.context.settings import DATASTORE_VARIABLES, WITHOUT_EFFECT, NodeSettings, without_effect
from cni_calico.nodeagent.context.unused import TABLE, names_of
from cni_calico.relay.settings import RelaySettings, parse_relay_settings
from tests.unit.docs import upstream_names

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
NAMES = PAGE[PAGE.index("## Every name") :]
QUOTED = {text.strip() for text in re.findall(r"`([^`]+)`", NAMES)}


def variables_of(page: str) -> set[str]:
    """The variables in the first column of a page's tables."""
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / page).read_text(), re.M)
    return {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9]*_?[A-Z0-9_]*)`", row)}


def annotations() -> set[str]:
    text = (ROOT / "docs" / "configuration.md").read_text()
    table = text[text.index("## Annotations of pods") : text.index("`qos.projectcalico.org/`")]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.M)
    return {f"cni.projectcalico.org/{name}" for row in rows for name in re.findall(r"`(\w+)`", row)}


def keys() -> set[str]:
    """Top-level keys of the network configuration."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|", text[: text.index("## Addresses: `ipam`")], re.M)
    return {name.partition(".")[0] for row in rows for name in re.findall(r"`([a-z][A-Za-z0-9_.]*)`", row)}


def known() -> set[str]:
    names = (
        {item.name for item in settings_of(NodeSettings)}
        | {row[0] for row in DATASTORE_VARIABLES}
        | set(WITHOUT_EFFECT)
    )
    names |= {f"FELIX_{name.upper()}" for name in ACCESS}
    names |= {f"-{flag}" for table in (flags.SERVICES, flags.COMMANDS, flags.PROBES) for flag in table}
    names |= {f"-{flag}" for table in (flags.MODIFIERS, flags.VALUES) for flag in table}
    return names | variables_of("install.md") | variables_of("controllers.md")


def rows_of(section: str) -> list[set[str]]:
    """The quoted names in the first column of each row of a table."""
    text = NAMES[NAMES.index(f"### {section}\n") :].partition("\n### ")[0]
    return [set(re.findall(r"`([^`]+)`", row)) for row in re.findall(r"^\| (.+?) \| .+ \|$", text, re.M)[1:]]


def configuration() -> set[str]:
    """Upstream's keys, without those that stand beside their object's: `policy` (`type`)."""
    beside = {f"{key}.{name}" for row in rows_of("The network configuration") for key in row for name in row}
    return set(upstream_names.KEYS.split()) - beside


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("settings", known()),
        ("annotations", annotations()),
        ("keys", keys()),
        ("commands", {name for name, _ in leaves(build_parser())}),
        ("upstream's executables", set(upstream_names.EXECUTABLES.split())),
        ("upstream's flags", set(upstream_names.FLAGS.split())),
        ("upstream's environment", set(upstream_names.ENVIRONMENT.split())),
        ("upstream's Typha", {f"TYPHA_{name.upper()}" for name in upstream_names.TYPHA.split()}),
        ("confd's variables", set(upstream_names.CONFD)),
        ("upstream's keys", configuration()),
        ("upstream's annotations", set(upstream_names.ANNOTATIONS.split())),
        ("upstream's files", set(upstream_names.FILES.split())),
        ("upstream's commands", set(upstream_names.COMMANDS)),
    ],
)
def test_every_name_is_on_the_page(kind: str, names: set[str]) -> None:
    assert len(names) > 7
    assert sorted(names - QUOTED) == []


def test_no_name_stands_in_two_rows_of_a_table() -> None:
    """Two rows would say two things of it; only these belong to two executables, objects or kinds of settings."""
    for section in re.findall(r"^### (.+)$", NAMES, re.M):
        rows = rows_of(section)
        again = {name for i, row in enumerate(rows) for name in row & set().union(*rows[:i])}
        assert len(rows) > 2 and again <= {"-v", "IP", "type", "k8s_api_root"}, (section, again)


def felix(names: Iterable[str]) -> set[str]:
    return {f"FELIX_{name.upper()}" for name in names}


REFUSED = felix(["OpenstackRegion"])


def test_the_part_about_felix_is_as_the_tables_have_it() -> None:
    module = runpy.run_path(str(ROOT / "build" / "compatibility_page.py"))
    assert module["with_part"](PAGE) == PAGE


def test_every_parameter_of_felix_is_used_or_in_the_table() -> None:
    used = {item.name.lower() for item in settings_of(FelixSettings)} | ACCESS.keys()
    table = {name.lower(): name for name in names_of(TABLE)}
    upstreams = {name.lower() for name in upstream_names.FELIX.split()}
    assert sorted(upstreams - used - table.keys()) == [] and sorted(used & table.keys()) == []
    fields = {RESOURCE_NAMES.get(name.lower(), name.lower()) for name in KNOWN}
    assert sorted(table.keys() - upstreams - fields) == []  # no name that nobody has
    assert sum(len(row.names.split()) for row in TABLE) == len(table)
    [unknown] = parse_felix({"FELIX_NOSUCHPARAMETER": "1"}).warnings
    assert "is unknown" in unknown


def test_fields_that_are_kept_are_fields() -> None:
    for kinds, names, here in KEPT:
        for kind in kinds.split(", "):
            known = str(known_fields(kind)) if kind != "IPAMConfiguration" else names
            assert here and all(name in known for name in names.split()), kind


def test_the_parameters_of_felix_that_are_refused_or_used() -> None:
    for name in REFUSED:
        with pytest.raises(InvalidConfig, match=name):
            require_supported({name: "false"})
    own = felix(item.name for item in settings_of(FelixSettings)) - felix(upstream_names.FELIX.split())
    assert own == {
        "FELIX_FLOWS",
        "FELIX_FLOWSHOSTENDPOINTS",
        "FELIX_FLOWSMAXLIVE",
        "FELIX_FLOWSMAXRATE",
        "FELIX_FLOWSNAMES",
        "FELIX_FLOWSRETENTION",
        "FELIX_POLICYENFORCEMENT",
        "FELIX_POLICYMEMORYLIMITMIB",
        "FELIX_POLICYRULEBUDGET",
        "FELIX_POLICYRULETOTAL",
        "FELIX_STANDINGRULES",
        "FELIX_TAKEOVERWITHIPVS",
        "FELIX_TAKEOVERWITHOUTPOLICIES",
        "FELIX_TYPHATOKENFILE",
        "FELIX_WIREGUARDEXEMPT",
        "FELIX_WIREGUARDROTATEEVERY",
        "FELIX_WIREGUARDSTRICT",
    }


def test_the_flags_of_calico_node() -> None:
    """Those that the page calls refused are unknown, all others are known."""
    refused, others = {"-bpf"}, {"-t", "-upgrade", "-version", "-status-file"}  # of other executables
    tables = (flags.SERVICES, flags.COMMANDS, flags.PROBES, flags.MODIFIERS, flags.VALUES)
    own = {f"-{flag}" for table in tables for flag in table} | {"-v"}
    assert set(upstream_names.FLAGS.split()) - own == refused | others


def test_typhas_variables_are_used_or_named_as_without_effect() -> None:
    used = {f"TYPHA_{item.name}" for item in settings_of(RelaySettings)}
    others = {f"TYPHA_{name.upper()}" for name in upstream_names.TYPHA.split()} - used
    given = {"TYPHA_SERVERCERTFILE": "/cert", "TYPHA_SERVERKEYFILE": "/key", **dict.fromkeys(others, "1")}
    _, without = parse_relay_settings(given)
    assert len(others) > 20 and not [text for text in without if "no effect" not in text]
    assert {text.partition(" ")[0] for text in without} == others


def test_confds_variables_are_named() -> None:
    named = without_effect(dict.fromkeys(upstream_names.CONFD, "x"))
    assert len(named) == len(upstream_names.CONFD) == 20
