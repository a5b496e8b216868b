"""The systemd unit and its environment: what they name exists, and nothing in them undoes what calico-node does."""

import configparser
import pathlib
import re

from cni_calico.nodeagent.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.flags import parse_flags
from cni_calico.nodeagent.settings import DATASTORE_VARIABLES, NodeSettings, parse_settings
from cni_calico.nodeagent.supervisor import STOP_S
from cni_calico.nodeagent.variables import settings_of

UNITS = pathlib.Path(__file__).parents[3] / "install" / "systemd"


def unit():
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNITS / "calico-node.service")
    return parser


def environment(*, commented):
    """name -> value of the lines that are in force, or also of those that are offered."""
    pattern = re.compile(r"^#?([A-Z][A-Z0-9_]+)=(.*)$" if commented else r"^([A-Z][A-Z0-9_]+)=(.*)$")
    lines = (UNITS / "calico-node.env").read_text().splitlines()
    return dict(match.groups() for line in lines if (match := pattern.match(line)))


def test_the_service():
    service = unit()["Service"]
    executable, *arguments = service["ExecStart"].split()
    assert executable.endswith("/calico-node") and parse_flags(arguments) == ({"run"}, {})
    assert service["KillMode"] == "mixed"  # the supervisor tells its children
    assert float(service["TimeoutStopSec"]) > STOP_S
    assert "RuntimeDirectory" not in service  # it would take the CNI server's socket away
    assert service["EnvironmentFile"].endswith("/calico-node.env")


def test_every_variable_is_known_and_valid():
    known = {item.name for item in settings_of(NodeSettings)} | {row[0] for row in DATASTORE_VARIABLES}
    felix = {f"FELIX_{item.name.upper()}" for item in settings_of(FelixSettings)}
    offered = environment(commented=True)
    assert set(offered) <= known | felix
    settings = parse_settings(offered)
    assert settings.v4_vxlan == "Always"
    assert parse_felix(offered).warnings == ()


def test_one_host_by_itself_is_what_is_in_force():
    settings = parse_settings(environment(commented=False))
    assert (settings.backend, settings.v4_nat, settings.v6_cidr) == ("none", True, "none")
    assert environment(commented=False)["DATASTORE_TYPE"] == "local"
