"""Which files set a host up: by what is asked for, and by what is installed."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.cni.netconf import parse_netconf
from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.node.setup import units
from cni_calico.ctl.node.setup.options import SetupOptions, parse_options
from cni_calico.ctl.node.setup.plan import (
    CONFLIST,
    ENVIRONMENT,
    NETAVARK_LINK,
    PlannedFile,
    SetupFacts,
    plan_files,
    render_environment,
)
from cni_calico.ctl.node_datastore import parse_environment_file
from cni_calico.ctl.settings import DEFAULT_PATH, parse_config, parse_environment
from cni_calico.errors import InvalidConfig
from cni_calico.nodeagent.context.settings import parse_settings
from tests.conftest import ROOT

BUNDLE = "/opt/cni/bin"
ETCD = "--datastore etcd --endpoints https://192.0.2.7:2379,https://192.0.2.8:2379"
FILES = "--ca /etc/calico/ca.crt --cert /etc/calico/etcd.crt --key /etc/calico/etcd.key"


def options(line: str) -> SetupOptions:
    return parse_options(parse_arguments(["node", "init", *shlex.split(line)]))


def facts(*, netavark: bool = False, portmap: str = "", has_bird: bool = True, has_command: bool = False) -> SetupFacts:
    both = {name: units.read_unit(name, BUNDLE) for name in (units.BOOT_TABLE, units.NODE)}
    return SetupFacts(BUNDLE, both, units.RUNTIMES, netavark, portmap, has_bird, has_command)


def planned(line: str, given_facts: SetupFacts | None = None) -> dict[str, PlannedFile]:
    return {one.path: one for one in plan_files(options(line), given_facts or facts())}


def test_one_host_by_itself() -> None:
    files = planned("--datastore local --cidr 10.77.0.0/16 --cidr fd00:77::/48 --name web1")
    environ = parse_environment_file(files[ENVIRONMENT].text)
    settings = parse_settings(environ)
    assert environ["DATASTORE_TYPE"] == "local" and files[ENVIRONMENT].mode == 0o600
    assert (settings.backend, settings.nodename) == ("none", "web1")
    assert (str(settings.v4_cidr), str(settings.v6_cidr)) == ("10.77.0.0/16", "fd00:77::/48")
    document = json.loads(files[CONFLIST].text)
    (plugin,) = document["plugins"]
    conf = parse_netconf({**plugin, "name": document["name"], "cniVersion": document["cniVersion"]}, {})
    assert conf.datastore.type == "local" and conf.nodename == "web1" and conf.ipam.assign_ipv6
    assert DEFAULT_PATH not in files and next(reversed(files)) == CONFLIST, "runtimes begin to use it then"


def test_one_of_several_hosts_on_etcd() -> None:
    files = planned(f"{ETCD} {FILES}")
    node = parse_environment(parse_environment_file(files[ENVIRONMENT].text))
    assert node == parse_config(files[DEFAULT_PATH].text), "calicoctl has the same datastore"
    assert node.etcd_endpoints == ("https://192.0.2.7:2379", "https://192.0.2.8:2379")
    plugin = json.loads(files[CONFLIST].text)["plugins"][0]
    conf = parse_netconf({**plugin, "name": "calico", "cniVersion": "1.0.0"}, {}).datastore
    assert (conf.etcd_endpoints, conf.etcd_ca_cert_file) == (node.etcd_endpoints, "/etc/calico/ca.crt")
    settings = parse_settings(parse_environment_file(files[ENVIRONMENT].text))
    assert (settings.backend, settings.v4_vxlan, settings.wait_for_datastore) == ("vxlan", "Always", True)


def test_bgp_to_a_router() -> None:
    asked = f"{ETCD} --as 64512 --peer 192.0.2.1@64500 --peer 2001:db8::1@65000.1"
    settings = parse_settings(parse_environment_file(planned(asked)[ENVIRONMENT].text))
    assert (settings.backend, settings.as_number, settings.v4_ipip) == ("bird", 64512, "Never")
    assert [str(peer.address) for peer in options(asked).peers] == ["192.0.2.1", "2001:db8::1"]
    with pytest.raises(InvalidConfig, match="BIRD, which is not installed"):
        plan_files(options(asked), facts(has_bird=False))


def test_what_the_runtimes_need_that_are_installed() -> None:
    files = planned("--datastore local", facts(netavark=True, portmap="/usr/lib/cni/portmap"))
    assert files[NETAVARK_LINK].target == f"{BUNDLE}/calico-netavark"
    assert files[f"{BUNDLE}/portmap"].target == "/usr/lib/cni/portmap"
    assert [one["type"] for one in json.loads(files[CONFLIST].text)["plugins"]] == ["calico", "portmap"]
    without = planned("--datastore local", facts(has_command=True))
    assert not any(one.target for one in without.values())


@pytest.mark.parametrize("name", [units.NODE, units.BOOT_TABLE])
def test_the_units_are_those_of_packages(name: str) -> None:
    assert units.read_unit(name, BUNDLE) == (ROOT / "install" / "systemd" / name).read_text()
    packaged = units.read_unit(name, "/usr/lib/cni-calico")
    assert BUNDLE not in packaged and "=/usr/lib/cni-calico/calico-node " in packaged


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--datastore local --ca /x", "--ca is given with --datastore local"),
        ("--datastore etcd", "needs --endpoints"),
        ("--datastore etcd --endpoints 192.0.2.7:2379", "no URL of etcd"),
        (f"{ETCD} --cert /x", "--cert and --key belong together"),
        (f"{ETCD} --ca relative", "--ca is 'relative'"),
        (f"{ETCD} --ca '/a b'", "--ca is '/a b'"),
        ("--datastore local --cidr 10.0.0.1/8", "--cidr is '10.0.0.1/8'"),
        ("--datastore local --cidr 10.0.0.0/8 --cidr 11.0.0.0/8", "two networks of IPv4"),
        ("--datastore local --as x", "--as is 'x'"),
        ("--datastore local --peer 192.0.2.1@64500", "--peer needs --as"),
        ("--datastore local --as 64512 --peer 192.0.2.1", "--peer is '192.0.2.1'"),
        ("--datastore local --as 64512 --peer router@1", "--peer is 'router@1'"),
        ("--datastore local --name 'a b'", "--name"),
    ],
)
def test_mistakes(line: str, why: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        options(line)
    assert why in str(raised.value) and raised.value.details


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_no_option_adds_a_variable(ca: str, endpoint: str, name: str) -> None:
    """Whatever is asked for, the environment file has only lines of ours."""
    try:
        asked = options(
            shlex.join(["--datastore", "etcd", f"--endpoints=http://{endpoint}", f"--ca={ca}", f"--name={name}"])
        )
    except InvalidConfig:
        return
    lines = [line for line in render_environment(asked).splitlines() if not line.startswith("#")]
    known = {"DATASTORE_TYPE", "ETCD_ENDPOINTS", "WAIT_FOR_DATASTORE", "ETCD_CA_CERT_FILE", "NODENAME", "IP"}
    assert {line.partition("=")[0] for line in lines} <= known | {
        "CALICO_NETWORKING_BACKEND",
        "CALICO_IPV4POOL_VXLAN",
        "CALICO_IPV6POOL_CIDR",
        "FELIX_HEALTHENABLED",
        "CALICO_DISABLE_FILE_LOGGING",
    }
    assert parse_environment_file(render_environment(asked))["ETCD_ENDPOINTS"] == ",".join(asked.endpoints)
