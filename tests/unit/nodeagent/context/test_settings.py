"""The environment of calico-node: every variable is parsed, wrong ones are all named, the reference page is true."""

import pathlib
import runpy
from ipaddress import ip_interface, ip_network

import pytest

from cni_calico.daemon.settings_table import parse_duration_s, settings_of
from cni_calico.errors import InvalidConfig
from cni_calico.model.access import DatastoreConfig
from cni_calico.nodeagent.context.settings import (
    NodeSettings,
    parse_running_settings,
    parse_settings,
    with_kubernetes_access,
    without_effect,
)

ROOT = pathlib.Path(__file__).parents[4]


def test_the_reference_page_is_up_to_date():
    page = runpy.run_path(str(ROOT / "build" / "settings_page.py"))["render_page"]()
    assert (ROOT / "docs" / "node-environment.md").read_text() == page


def test_nothing_set_gives_the_defaults():
    assert parse_settings({}) == NodeSettings()
    assert parse_settings({"IP": "", "AS": " ", "CALICO_IPV4POOL_CIDR": ""}) == NodeSettings()


@pytest.mark.parametrize(
    ("variable", "text", "attribute", "value"),
    [
        ("NODENAME", "  Host-A ", "nodename", "Host-A"),
        ("AS", "65001", "as_number", 65001),
        ("AS", "1.10", "as_number", 65546),
        ("CALICO_ROUTER_ID", "hash", "router_id", "hash"),
        ("CALICO_ROUTER_ID", "10.0.0.1", "router_id", "10.0.0.1"),
        ("CALICO_NETWORKING_BACKEND", "VXLAN", "backend", "vxlan"),
        ("WAIT_FOR_DATASTORE", "true", "wait_for_datastore", True),
        ("CALICO_IPV4POOL_NAT_OUTGOING", "No", "v4_nat", False),
        ("CALICO_IPV4POOL_IPIP", "Off", "v4_ipip", "Never"),
        ("CALICO_IPV4POOL_IPIP", "cross-subnet", "v4_ipip", "CrossSubnet"),
        ("CALICO_IPV4POOL_VXLAN", "always", "v4_vxlan", "Always"),
        ("CALICO_IPV4POOL_CIDR", "10.1.2.3/16", "v4_cidr", ip_network("10.1.0.0/16")),
        ("CALICO_IPV6POOL_CIDR", "none", "v6_cidr", "none"),
        ("CALICO_IPV6POOL_BLOCK_SIZE", "116", "v6_block_size", 116),
        ("CALICO_IPV4POOL_NODE_SELECTOR", "has(rack)", "v4_selector", "has(rack)"),
        ("CLUSTER_TYPE", "k8s, bgp", "cluster_type", ("k8s", "bgp")),
        ("AUTODETECT_POLL_INTERVAL", "1m30s", "autodetect_poll_s", 90.0),
        ("CALICO_STARTUP_LOGLEVEL", "CRITICAL", "startup_log_level", "error"),
    ],
)
def test_values(variable, text, attribute, value):
    assert getattr(parse_settings({variable: text}), attribute) == value


def test_addresses():
    ip = parse_settings({"IP": "10.0.0.7"}).ip
    assert (ip.mode, ip.address, ip.with_prefix) == ("fixed", ip_interface("10.0.0.7/32"), False)
    assert parse_settings({"IP6": "fd00::1/64"}).ip6.address == ip_interface("fd00::1/64")
    assert parse_settings({"IP": "autodetect"}).ip.mode == "autodetect"


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"IP": "fd00::1"}, "IP='fd00::1'"),
        ({"IP6": "10.0.0.1"}, "IP6='10.0.0.1'"),
        ({"IP": "10.0.0.300"}, "IP='10.0.0.300'"),
        ({"AS": "4294967296"}, "AS='4294967296'"),
        ({"AS": "1.65536"}, "AS='1.65536'"),
        ({"CALICO_ROUTER_ID": "fd00::1"}, "CALICO_ROUTER_ID"),
        ({"CALICO_IPV4POOL_BLOCK_SIZE": "33"}, "CALICO_IPV4POOL_BLOCK_SIZE='33'"),
        ({"CALICO_IPV6POOL_BLOCK_SIZE": "115"}, "CALICO_IPV6POOL_BLOCK_SIZE='115'"),
        ({"CALICO_IPV4POOL_CIDR": "fd00::/48"}, "CALICO_IPV4POOL_CIDR"),
        ({"CALICO_IPV4POOL_CIDR": "10.0.0.0/28"}, "smaller than one block"),
        ({"CALICO_IPV4POOL_NODE_SELECTOR": "has("}, "CALICO_IPV4POOL_NODE_SELECTOR"),
        ({"CALICO_IPV4POOL_IPIP": "Always", "CALICO_IPV4POOL_VXLAN": "CrossSubnet"}, "cannot both be"),
        ({"CALICO_IPV6POOL_IPIP": "Always"}, "no IPIP for IPv6"),
        ({"NO_DEFAULT_POOLS": "true", "CALICO_IPV6POOL_CIDR": "fd00::/48"}, "NO_DEFAULT_POOLS=true"),
        ({"CALICO_NETWORKING_BACKEND": "brd"}, "expected one of bird, vxlan, none"),
        ({"IP_AUTODETECTION_METHOD": "interface=("}, "regular expression"),
        ({"IP_AUTODETECTION_METHOD": "first_found"}, "first-found"),
        ({"IP_AUTODETECTION_METHOD": "cidr=10.0.0.0/40"}, "10.0.0.0/40"),
        ({"IP_AUTODETECTION_METHOD": "can-reach="}, "after the equals sign"),
        ({"AUTODETECT_POLL_INTERVAL": "sixty"}, "AUTODETECT_POLL_INTERVAL='sixty'"),
        ({"WAIT_FOR_DATASTORE": "maybe"}, "expected true or false"),
    ],
)
def test_a_wrong_value_is_named(environ, named):
    with pytest.raises(InvalidConfig) as error:
        parse_settings(environ)
    assert named in str(error.value)


def test_all_wrong_values_are_named_at_once():
    with pytest.raises(InvalidConfig) as error:
        parse_settings({"IP": "x", "AS": "y", "CALICO_IPV4POOL_BLOCK_SIZE": "z"})
    assert all(text in str(error.value) for text in ("IP='x'", "AS='y'", "CALICO_IPV4POOL_BLOCK_SIZE='z'"))


def test_what_runs_already_goes_on_without_what_is_wrong():
    settings, wrong = parse_running_settings(
        {"AS": "high", "IP": "x", "CALICO_IPV4POOL_BLOCK_SIZE": "33", "CALICO_NETWORKING_BACKEND": "vxlan"}
    )
    assert (settings.as_number, settings.ip.mode, settings.backend) == (None, "keep", "vxlan")
    assert [text.partition("=")[0] for text in wrong] == ["IP", "AS", "CALICO_IPV4POOL_BLOCK_SIZE"]
    assert parse_running_settings({"AS": "1"}) == (parse_settings({"AS": "1"}), ())
    _, wrong = parse_running_settings({"NO_DEFAULT_POOLS": "true", "CALICO_IPV6POOL_CIDR": "fd00::/48"})
    assert len(wrong) == 1 and "NO_DEFAULT_POOLS=true cannot be combined" in wrong[0]


@pytest.mark.parametrize("variable", ["CALICO_NETWORKING_BACKEND", "USE_POD_CIDR"])
def test_nothing_runs_on_a_guess_about_what_other_nodes_rely_on(variable):
    with pytest.raises(InvalidConfig, match=f"{variable}='maybe'") as error:
        parse_running_settings({variable: "maybe", "AS": "high"})
    assert "AS=" not in str(error.value)


def test_every_variable_has_a_meaning_and_a_section():
    for item in settings_of(NodeSettings):
        assert item.meaning.endswith((".", "only.")) and item.section, item.name


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("60s", 60), ("1m30s", 90), ("1.5h", 5400), ("250ms", 0.25), (".5s", 0.5)]
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "60", "s", "1m 30s", "-5s", "5d"])
def test_no_durations(text):
    with pytest.raises(ValueError):
        parse_duration_s(text)


def test_what_has_no_effect_is_told():
    assert without_effect({"CALICO_EARLY_NETWORKING": "/cfg"}) == [
        "CALICO_EARLY_NETWORKING is set and has no effect: dual top-of-rack set-ups are not supported"
    ]
    assert without_effect({}) == []


def test_kubernetes_variables_reach_the_datastore_configuration():
    config = with_kubernetes_access(
        DatastoreConfig("kubernetes"),
        {
            "K8S_API_ENDPOINT": "https://k:6443",
            "K8S_TOKEN": "t",
            "K8S_CA_FILE": "/ca",
            "K8S_CERT_FILE": "/c",
            "K8S_CURRENT_CONTEXT": "other",
        },
    )
    access = config.kubernetes
    assert access.context == "other"
    assert (access.api_root, access.token, access.certificate_authority) == ("https://k:6443", "t", "/ca")
    assert access.client_certificate == "/c"
