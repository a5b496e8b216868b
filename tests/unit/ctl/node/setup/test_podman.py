"""Whether podman's networks can be ours, and what becomes of a network that is there."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.node.setup.options import SetupOptions, parse_options
from cni_calico.ctl.node.setup.plan import NETAVARK_LINK, SetupFacts, plan_files
from cni_calico.ctl.node.setup.podman import (
    CHANGED,
    NEW,
    SAME,
    PodmanNetwork,
    find_outdated,
    network_words,
    parse_info,
    parse_network,
    plan_network,
)
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import InvalidConfig, KernelError
from cni_calico.netavark.documents import KUBECONFIG, TOP

ETCD = "--datastore etcd --endpoints http://192.0.2.7:2379"
DEBIAN_12 = {"host": {"networkBackend": "netavark"}, "version": {"Version": "4.3.1"}}
PODMAN_5 = {
    "host": {
        "networkBackend": "netavark",
        "networkBackendInfo": {"backend": "netavark", "version": "netavark 1.14.0", "dns": {"version": "1.14.0"}},
    },
    "version": {"APIVersion": "5.4.2", "Version": "5.4.2"},
}


def options(line: str) -> SetupOptions:
    return parse_options(parse_arguments(["node", "init", *shlex.split(line)]))


def as_made(line: str, containers: tuple[str, ...] = (), /, **more: str) -> PodmanNetwork:
    """The network as podman describes it after a run of init with these options."""
    words = network_words(options(line))
    given = dict(word.split("=", 1) for flag, word in pairwise(words) if flag == "-o")
    document = {"name": words[-1], "driver": "calico", "options": given | more, "ipv6_enabled": "--ipv6" in words}
    return parse_network(json.dumps([document]).encode(), containers)


def test_what_podman_says_of_itself() -> None:
    assert parse_info(json.dumps(DEBIAN_12).encode()) == ("4.3.1", "netavark", "")
    assert parse_info(json.dumps(PODMAN_5).encode()) == ("5.4.2", "netavark", "netavark 1.14.0")


@given(st.one_of(st.binary(max_size=30), st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode)))
def test_anything_else_that_it_says_is_no_netavark(text: bytes) -> None:
    assert parse_info(text) == ("", "", "")
    with pytest.raises(KernelError):
        parse_network(text, ())


@pytest.mark.parametrize(
    ("podman", "netavark", "lacking"),
    [
        ("4.3.1", "netavark 1.4.0", "podman 4.3.1, and 4.4 is the first"),
        ("4.4.0", "netavark 1.5.0", "netavark 1.5.0, and 1.6 is the first"),
        ("4.9.3", "", "netavark of an unknown version, and 1.6 is the first"),
        ("4.4.0-dev", "netavark 1.6.0", ""),
        ("5.4.2", "netavark 1.14.0", ""),
        ("10.0", "netavark 2.0.0-rc1", ""),
    ],
)
def test_which_versions_have_plugins(podman: str, netavark: str, lacking: str) -> None:
    assert find_outdated(podman, netavark) == lacking


def test_too_old_ones_are_refused_with_the_way_out() -> None:
    facts = SetupFacts("/opt/cni/bin", {}, "", outdated="podman 4.3.1, and 4.4 is the first")
    with pytest.raises(InvalidConfig, match=r"podman 4\.3\.1, and 4\.4 is the first") as raised:
        plan_files(options("--datastore local"), facts)
    assert 'network_backend = "cni"' in str(raised.value.details)
    files = plan_files(options("--datastore local"), facts, without_podman=True)
    assert NETAVARK_LINK not in {one.path for one in files}


def test_a_network_as_it_should_be_stays() -> None:
    assert plan_network(None, options(ETCD), is_noted=False) == NEW
    for is_noted in (False, True):
        assert plan_network(as_made(ETCD, mtu="1400"), options(ETCD), is_noted=is_noted) == SAME
    assert plan_network(as_made(ETCD, ("web",)), options(ETCD), is_noted=True) == SAME


CHANGES = [
    ("--datastore local", ETCD),
    (ETCD, "--datastore local"),
    (ETCD, f"{ETCD} --name web1"),
    (ETCD, f"{ETCD} --ca /etc/calico/ca.crt"),
    (ETCD, f"{ETCD} --cidr fd00:77::/48"),
    (f"{ETCD} --cidr fd00:77::/48", ETCD),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_one_with_another_datastore_or_name_is_made_anew_or_refused(before: str, after: str) -> None:
    assert plan_network(as_made(before), options(after), is_noted=True) == CHANGED
    with pytest.raises(CommandFailed, match="containers use it: db, web") as raised:
        plan_network(as_made(before, ("db", "web")), options(after), is_noted=True)
    assert "podman rm -f" in str(raised.value.details)
    with pytest.raises(CommandFailed, match="which node init did not make") as raised:
        plan_network(as_made(before), options(after), is_noted=False)
    assert raised.value.details == "if nothing needs it: podman network rm calico"


def test_somebody_elses_network_of_that_name_is_refused() -> None:
    bridge = parse_network(b'[{"name": "calico", "driver": "bridge", "ipv6_enabled": false}]', ())
    with pytest.raises(CommandFailed, match="a network calico with another driver, which node init did not make"):
        plan_network(bridge, options("--datastore local"), is_noted=False)


# of the rest a user may choose another value
COMPARED = {*TOP, KUBECONFIG} - {
    "mtu",
    "log_level",
    "log_file_path",
    "policy_setup_timeout_seconds",
    "sticky_addresses",
}


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_every_option_that_matters_is_compared(name: str) -> None:
    assert plan_network(as_made(ETCD, **{name: "other"}), options(ETCD), is_noted=True) == CHANGED
