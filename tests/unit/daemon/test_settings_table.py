"""Every variable that is documented is used, every one that is used is documented, and every parameter likewise."""

import ast
import copy
import dataclasses
import pickle
import re
from functools import cache
from pathlib import Path

import pytest

from cni_calico import expanded
from cni_calico.daemon.settings_table import parse_networks, settings_of
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.settings import DATASTORE_VARIABLES, WITHOUT_EFFECT, NodeSettings, parse_settings

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "cni_calico"
PAGES = [
    ROOT / "docs" / f"{name}.md"
    for name in ("node-environment", "configuration", "install", "calicoctl", "controllers")
]
# the CNI specification's, netlink attributes, flannel's, the operating system's, systemd's, what a report says of parts
NOT_OURS = re.compile(
    r"CNI_(ARGS|COMMAND|CONTAINERID|IFNAME|NETNS|PATH)|K8S_POD_.*|IFLA_.*|PATH|LD_.*|NOTIFY_SOCKET|LISTEN_(FDS|FDNAMES|PID)|BGP|VNI|TERM|COLUMNS"
)
OF_TESTS = {"CNI_TEST_NAMESPACE"}
# set by install-cni.sh, which finds the executables' directory, and by tests
OF_SCRIPTS = {"CALICO_BUNDLE_DIR", "CALICO_CNI_TEMPLATE"}


@cache
def trees():
    return {path: ast.parse(path.read_text()) for path in SOURCES.rglob("*.py")}


def literals(tree):
    """Texts that something is asked for by: x.get("A"), x["A"], "A" in x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "getenv"):
            yield from node.args[:1]
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            yield node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setting":
            yield from node.args[1:2]


@cache
def read_variables():
    """Name -> the modules that read it."""
    found = {}
    for path, tree in trees().items():
        for node in literals(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)*", node.value):
                    found.setdefault(node.value, set()).add(str(path.relative_to(ROOT)))
    return found


@cache
def attributes_of_each():
    """Path -> the attributes that are read there."""
    return {
        path: {
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        }
        for path, tree in trees().items()
    }


def attributes(*, without):
    """Every attribute that is read in the sources, but in these modules."""
    return set().union(*(names for path, names in attributes_of_each().items() if path.name not in without))


def test_every_variable_that_is_read_is_documented():
    pages = "\n".join(page.read_text() for page in PAGES)
    documented = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", pages))
    felix = {f"FELIX_{item.name.upper()}" for item in settings_of(FelixSettings)}
    read = {name: where for name, where in read_variables().items() if not NOT_OURS.fullmatch(name)}
    assert {"ETCD_PASSWORD", "KUBERNETES_SERVICE_HOST", "CALICO_RUN_DIR", "TLS_ASSETS_DIR"} <= set(read)
    unknown = {name: where for name, where in read.items() if name not in documented | felix | OF_TESTS | OF_SCRIPTS}
    assert unknown == {}


def test_every_documented_variable_is_used():
    used, read = attributes(without=("settings.py",)), read_variables()
    unused = [item.name for item in settings_of(NodeSettings) if item.attribute not in used and item.name not in read]
    assert unused == ["CALICO_IPV6POOL_IPIP"]  # there is no IPIP for IPv6: it is only ever refused
    texts = "\n".join(path.read_text() for path in SOURCES.rglob("*.py") if path.name != "settings.py")
    texts += (SOURCES / "nodeagent" / "context" / "settings.py").read_text().partition("def with_kubernetes_access")[2]
    assert [row[0] for row in DATASTORE_VARIABLES if f'"{row[0]}"' not in texts] == []


def test_every_felix_parameter_is_used():
    used = attributes(without=("felix.py",))
    tree = trees()[SOURCES / "nodeagent" / "context" / "felix.py"]
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    unused = [item.name for item in settings_of(FelixSettings) if item.attribute not in used | own]
    assert unused == []


def test_what_has_no_effect_is_read_by_nobody():
    assert set(WITHOUT_EFFECT) & set(read_variables()) == set()


@pytest.mark.parametrize("item", list(settings_of(NodeSettings)), ids=lambda item: item.name)
def test_every_variable_says_what_it_accepts(item):
    """A value that is nonsense for the kind is refused by name; free texts accept anything."""
    assert item.kind.schema
    if item.kind.schema in ("text", "names separated by commas"):
        return
    with pytest.raises(Exception, match=f"{item.name}='\\?! nonsense'"):
        parse_settings({item.name: "?! nonsense"})


@pytest.mark.parametrize("item", list(settings_of(FelixSettings)), ids=lambda item: item.name)
def test_every_parameter_warns_about_nonsense(item):
    warnings = parse_felix({f"FELIX_{item.name.upper()}": "?! nonsense"}).warnings
    if item.kind.schema in ("text", "names separated by commas", "true or false; anything else counts as true"):
        assert warnings == ()
    else:
        assert len(warnings) == 1 and f"FELIX_{item.name.upper()}='?! nonsense' is not used" in warnings[0]


def test_networks():
    assert [str(n) for n in parse_networks("10.96.0.1/12, fd00::/112,")] == ["10.96.0.0/12", "fd00::/112"]
    with pytest.raises(ValueError, match="'ten'"):
        parse_networks("10.0.0.0/8,ten")


def test_a_table_is_as_a_frozen_dataclass():
    """The real one: it inherits, has a property, and what changes of it is compared and told."""
    table, same = FelixSettings(ipv6_support=False), dataclasses.replace(FelixSettings(), ipv6_support=False)
    assert (table, hash(table)) == (same, hash(same)) and table != FelixSettings() and table != object()
    assert expanded.replace(table, health_enabled=True) == dataclasses.replace(table, health_enabled=True) != table
    assert {field.name for field in dataclasses.fields(table)} == {
        item.attribute for item in settings_of(FelixSettings)
    }
    assert repr(table).startswith("FelixSettings(") and "ipv6_support=False" in repr(table)
    assert copy.deepcopy(table) == pickle.loads(pickle.dumps(table)) == table
    for change in (lambda: setattr(table, "ipv6_support", True), lambda: delattr(table, "ipv6_support")):
        with pytest.raises(AttributeError):
            change()
    with pytest.raises(AttributeError):
        table.another = 1
    with pytest.raises(TypeError, match="FelixSettings has no setting nothing"):
        FelixSettings(nothing=1)
