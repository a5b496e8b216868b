"""Older words for the same things: FELIX_ forms of the datastore's access, felix.cfg, CALICO_NETWORKING."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.errors import InvalidConfig
from cni_calico.model.access import PREFIXED
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.context.legacy import expand_environment, require_supported
from cni_calico.nodeagent.context.open import read_environment
from cni_calico.nodeagent.context.settings import parse_settings

RUN_SCRIPT = {  # what upstream's run script exports for a bare "calico-node -felix"
    "FELIX_FELIXHOSTNAME": "n1",
    "FELIX_DATASTORETYPE": "etcdv3",
    "FELIX_ETCDENDPOINTS": "https://10.0.0.9:2379",
    "FELIX_ETCDKEYFILE": "/k",
    "FELIX_ETCDCERTFILE": "/c",
    "FELIX_ETCDCAFILE": "/a",
}


def test_a_bare_felix_finds_its_datastore() -> None:
    expanded = expand_environment(RUN_SCRIPT)
    found = parse_datastore(JsonFields({}), expanded)
    assert (found.type, found.etcd_endpoints) == ("etcdv3", ("https://10.0.0.9:2379",))
    assert (found.etcd_key_file, found.etcd_cert_file, found.etcd_ca_cert_file) == ("/k", "/c", "/a")
    assert parse_settings(expanded).nodename == "n1"
    assert parse_felix(expanded).warnings == ()


def test_the_oldest_form_of_an_endpoint() -> None:
    expanded = expand_environment({"FELIX_ETCDADDR": "10.0.0.9:2379", "FELIX_ETCDSCHEME": "https"})
    assert parse_datastore(JsonFields({}), expanded).etcd_endpoints == ("https://10.0.0.9:2379",)


def test_plain_variables_win() -> None:
    expanded = expand_environment({**RUN_SCRIPT, "NODENAME": "n2", "DATASTORE_TYPE": "local"})
    assert (expanded["NODENAME"], expanded["DATASTORE_TYPE"]) == ("n2", "local")


def test_the_datastores_variables_with_upstreams_prefix() -> None:
    """Upstream's client library reads each of them so, and so wins; no other CALICO_ variable has such a form."""
    for name in PREFIXED:
        expanded = expand_environment({f"CALICO_{name}": "a", name: "b", f"FELIX_{name.replace('_', '')}": "c"})
        assert expanded[name] == "a", name
        assert expand_environment({f"CALICO_{name}": "", name: "b"})[name] == "b"
    environ = {"CALICO_DATASTORE_TYPE": "etcdv3", "CALICO_ETCD_ENDPOINTS": "https://a", "CALICO_ETCD_KEY_FILE": "/k"}
    for given in (environ, expand_environment(environ)):
        found = parse_datastore(JsonFields({}), {**given, "ETCD_ENDPOINTS": "http://b"} if given is environ else given)
        assert (found.type, found.etcd_endpoints, found.etcd_key_file) == ("etcdv3", ("https://a",), "/k")
    others = {"CALICO_NODENAME_FILE": "/n", "CALICO_IPV4POOL_CIDR": "10.0.0.0/16", "CALICO_K8S_NODE_REF": "n"}
    assert expand_environment(others) == others


@pytest.mark.parametrize(
    ("environ", "own", "default", "internal", "driver"),
    [
        ({}, {}, {}, True, "calico-iptables-plugin"),
        ({}, {}, {"useInternalDataplaneDriver": False, "dataplaneDriver": "calico-vpp"}, False, "calico-vpp"),
        (
            {},
            {"useInternalDataplaneDriver": True},
            {"useInternalDataplaneDriver": False},
            True,
            "calico-iptables-plugin",
        ),
        (
            {"FELIX_USEINTERNALDATAPLANEDRIVER": "false", "FELIX_DATAPLANEDRIVER": "/usr/local/bin/plugins/proxy"},
            {},
            {"useInternalDataplaneDriver": True, "dataplaneDriver": "other"},
            False,
            "/usr/local/bin/plugins/proxy",
        ),
    ],
)
def test_a_data_plane_of_somebody_else(
    environ: dict[str, str], own: dict[str, object], default: dict[str, object], internal: bool, driver: str
) -> None:
    found = parse_felix(environ, own, default)
    assert (found.settings.internal_driver, found.settings.dataplane_driver) == (
        internal,
        driver,
    ) and not found.warnings


@pytest.mark.parametrize(
    "path", ["/var/run/nodeagent/mount/x/run", "/tmp/a", "/usr/../tmp/a", "a/b", "/usr/bin/a b", "-x"]
)
def test_a_driver_that_a_pod_may_have_written(path: str) -> None:
    found = parse_felix({}, {"dataplaneDriver": path})
    assert found.settings.dataplane_driver == "calico-iptables-plugin"
    assert "expected the name of a program in PATH, or its path below /usr" in str(found.warnings)


def test_felix_cfg(tmp_path: Path) -> None:
    path = tmp_path / "felix.cfg"
    path.write_text("[global]\nVXLANMTU = 1400\n# Ipv6Support = false\nIpInIpMtu=1300\nFelixHostname = n7\nodd\n")
    expanded = read_environment({"FELIX_IPINIPMTU": "1200"}, str(path))
    settings = parse_felix(expanded, {"vxlanMTU": 1000}).settings
    assert (settings.vxlan_mtu, settings.mtu_v4_ipip, settings.ipv6_support) == (1400, 1200, True)
    assert expanded["NODENAME"] == "n7"
    assert read_environment({"A": "b"}, str(tmp_path / "none")) == {"A": "b"}


@pytest.mark.parametrize(
    ("environ", "backend"),
    [
        ({"CALICO_NETWORKING": "false"}, "none"),
        ({"CALICO_NETWORKING": "true"}, "bird"),
        ({"CALICO_NETWORKING": "False"}, "bird"),
        ({"CALICO_NETWORKING": "off"}, "bird"),
        ({"CALICO_NETWORKING": "false", "CALICO_NETWORKING_BACKEND": "vxlan"}, "none"),
        ({"CALICO_NETWORKING": "true", "CALICO_NETWORKING_BACKEND": "vxlan"}, "bird"),
        ({"CALICO_NETWORKING": " ", "CALICO_NETWORKING_BACKEND": "vxlan"}, "vxlan"),
    ],
)
def test_calico_networking(environ: dict[str, str], backend: str) -> None:
    assert parse_settings(expand_environment(environ)).backend == backend


def test_gobgp_is_told_where_to_go() -> None:
    with pytest.raises(InvalidConfig, match=r"gobgp is not supported any more .*: use bird"):
        parse_settings({"CALICO_NETWORKING_BACKEND": "gobgp"})


def test_what_is_refused_is_named() -> None:
    with pytest.raises(InvalidConfig, match="FELIX_OpenstackRegion='east'"):
        require_supported({"FELIX_OpenstackRegion": "east"})
    require_supported({"FELIX_OpenstackRegion": ""})


def test_another_api_group_is_refused() -> None:
    for group in ("", "crd.projectcalico.org/v1", "ProjectCalico.org/v3"):
        require_supported({"CALICO_API_GROUP": group})
    with pytest.raises(InvalidConfig, match=r"CALICO_API_GROUP='foo/v9': expected crd\.projectcalico\.org/v1 or"):
        require_supported({"CALICO_API_GROUP": "foo/v9"})


def test_policy_sync_has_a_prefix_and_usage_reports_are_not_named() -> None:
    found = parse_felix({"FELIX_POLICYSYNCPATHPREFIX": "/var/run/nodeagent/", "FELIX_USAGEREPORTINGENABLED": "true"})
    assert found.settings.policy_sync_prefix == "/var/run/nodeagent" and not found.warnings
    found = parse_felix({"FELIX_POLICYSYNCPATHPREFIX": "nodeagent"})
    assert found.settings.policy_sync_prefix == "" and "absolute path" in str(found)


def test_the_lock_of_iptables_is_waited_for_as_long_as_asked() -> None:
    assert parse_felix({"FELIX_IPTABLESLOCKTIMEOUTSECS": "30"}).settings.iptables_lock_s == 30.0
