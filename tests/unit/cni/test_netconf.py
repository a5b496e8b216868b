"""The network configuration: defaults, upstream's spellings, and an error that names the field for everything else."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.cni.netconf import parse_json, parse_netconf
from cni_calico.cni.versions import SUPPORTED
from cni_calico.errors import CalicoError, DecodeFailure, IncompatibleVersion, InvalidConfig

BASE = {"name": "net", "cniVersion": "1.0.0", "type": "calico", "datastore_type": "local"}


def parse(changes=None, environ=None, command="ADD"):
    return parse_netconf({**BASE, **(changes or {})}, environ or {}, command)


def test_defaults():
    conf = parse({"ipam": {"type": "calico-ipam"}})
    assert (conf.mtu, conf.num_queues, conf.nodename_file) == (0, 1, "/var/lib/calico/nodename")
    assert (conf.ipam.assign_ipv4, conf.ipam.assign_ipv6) == (True, False)
    assert conf.datastore.path == "/var/lib/calico/datastore.db"


def test_strings_where_upstream_has_strings():
    conf = parse({"ipam": {"type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true"}, "mtu": "1440"})
    assert (conf.ipam.assign_ipv4, conf.ipam.assign_ipv6, conf.mtu) == (False, True, 1440)


def test_credentials_given_inline():
    policy = {
        "type": "k8s",
        "k8s_api_root": "https://api:6443",
        "k8s_auth_token": "t",
        "k8s_client_certificate": "/c",
        "k8s_client_key": "/k",
        "k8s_certificate_authority": "/ca",
    }
    access = parse({"datastore_type": "kubernetes", "policy": policy, "mode": "vxlan"}).datastore.kubernetes
    assert (access.api_root, access.token) == ("https://api:6443", "t")
    assert (access.client_certificate, access.client_key, access.certificate_authority) == ("/c", "/k", "/ca")


def test_datastore_type_follows_the_endpoints():
    base = {key: value for key, value in BASE.items() if key != "datastore_type"}
    assert parse_netconf({**base, "etcd_endpoints": "http://a:1, http://b:2"}, {}).datastore.etcd_endpoints == (
        "http://a:1",
        "http://b:2",
    )
    assert parse_netconf(base, {}).datastore.type == "kubernetes"
    assert parse_netconf(base, {"ETCD_ENDPOINTS": "http://e:2379"}).datastore.type == "etcdv3"
    authority = parse_netconf({**base, "etcd_authority": "h:4001", "etcd_scheme": "https"}, {})
    assert authority.datastore.etcd_endpoints == ("https://h:4001",)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"datastore_type": "mysql"}, "unknown datastore type: mysql"),
        ({"datastore_type": "etcdv3"}, "no etcd endpoints specified"),
        ({"name": ""}, "missing network name"),
        ({"name": "a/b"}, "invalid characters found in network name"),
        ({"name": "x" * 300}, "invalid characters found in network name"),
        ({"mtu": -1}, "mtu: expected an integer"),
        ({"mtu": "--11"}, "mtu: expected an integer"),
        ({"mtu": 70000}, "mtu: expected an integer"),
        ({"mtu": True}, "mtu: expected an integer"),
        ({"ipam": []}, "ipam: expected an object"),
        ({"ipam": {"type": "../x"}}, "ipam.type"),
        ({"ipam": {"type": "calico-ipam", "ipv4_pools": "a"}}, "ipam.ipv4_pools: expected a list"),
        ({"ipam": {"type": "calico-ipam", "ipv4_pools": ["1.2.3.4/99"]}}, "invalid CIDR address: 1.2.3.4/99"),
        ({"ipam": {"type": "calico-ipam", "ipv6_pools": ["10.0.0.0/8"]}}, "IPv6 pools"),
        ({"policy_setup_timeout_seconds": -1}, "policy_setup_timeout_seconds"),
        ({"calico_api_group": "foo/v9"}, "cannot use calico_api_group='foo/v9': expected crd.projectcalico.org/v1 or"),
        ({"calico_api_group": "projectcalico.org"}, "calico_api_group='projectcalico.org'"),
        ({"dataplane_options": {"type": "dpdk"}}, "Invalid dataplane type: dpdk"),
        ({"dataplane_options": {"type": 7}}, "Invalid dataplane type: 7"),
        ({"dataplane_options": "grpc"}, "dataplane_options: expected an object"),
        ({"prevResult": 3}, "prevResult: expected an object"),
        ({"cni.dev/valid-attachments": [{"containerID": "x"}]}, "ifname"),
    ],
)
def test_what_is_wrong_is_named(changes, text):
    with pytest.raises(InvalidConfig, match=text.replace("/", r"\/")) as failure:
        parse(changes)
    assert failure.value.code == 7


def test_the_kernels_data_plane_needs_no_words():
    assert parse({"dataplane_options": {}}) and parse({"dataplane_options": None})


@pytest.mark.parametrize(
    ("version", "command", "ok"),
    [
        ("0.3.1", "CHECK", False),
        ("0.4.0", "CHECK", True),
        ("1.0.0", "GC", False),
        ("1.1.0", "GC", True),
        ("1.0.0", "STATUS", False),
        ("0.1.0", "DEL", True),
    ],
)
def test_verbs_by_version(version, command, ok):
    if ok:
        assert parse({"cniVersion": version}, command=command).cni_version == version
        return
    with pytest.raises(IncompatibleVersion, match=f"config version does not allow {command}") as failure:
        parse({"cniVersion": version}, command=command)
    assert failure.value.code == 1


@pytest.mark.parametrize("version", ["2.0.0", "0.5.0", "1.0", 3])
def test_unknown_versions(version):
    with pytest.raises(IncompatibleVersion):
        parse({"cniVersion": version})


def test_absent_version_is_0_2_0():
    document = {key: value for key, value in BASE.items() if key != "cniVersion"}
    assert parse_netconf(document, {}).cni_version == "0.2.0"


@pytest.mark.parametrize("stdin", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100000])
def test_not_an_object(stdin):
    with pytest.raises(DecodeFailure) as failure:
        parse_json(stdin)
    assert failure.value.code == 6


KEYS = st.sampled_from(
    [
        "name",
        "cniVersion",
        "type",
        "mtu",
        "num_queues",
        "nodename",
        "nodename_file",
        "datastore_type",
        "datastore_path",
        "etcd_endpoints",
        "ipam",
        "policy",
        "kubernetes",
        "feature_control",
        "container_settings",
        "log_level",
        "log_file_max_size",
        "prevResult",
        "runtimeConfig",
        "qps",
        "burst",
        "readiness_gates",
        "cni.dev/valid-attachments",
        "cni.dev/attachments",
        "include_default_routes",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(st.dictionaries(KEYS, JSON, max_size=5), st.sampled_from(["ADD", "DEL", "CHECK", "GC", "STATUS"]))
def test_any_json_parses_or_is_refused_by_name(changes, command):
    try:
        conf = parse_netconf(parse_json(json.dumps({**BASE, **changes}).encode()), {}, command)
    except CalicoError as e:
        assert e.code in (1, 7) and e.message
    else:
        assert conf.cni_version in SUPPORTED


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(stdin):
    try:
        parse_json(stdin)
    except DecodeFailure as e:
        assert e.code == 6


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, ()),
        ({"cni.dev/attachments": None}, ()),
        ({"cni.dev/valid-attachments": []}, ()),
        ({"cni.dev/valid-attachments": None, "cni.dev/attachments": [{"containerID": "c", "ifname": "eth0"}]}, ("c",)),
        ({"cni.dev/attachments": [{"containerID": "c", "ifname": "eth0"}]}, ("c",)),
    ],
)
def test_null_is_an_empty_list_and_nothing_is_none(given, found):
    document = {**BASE, "cniVersion": "1.1.0", **given}
    conf = parse_netconf(parse_json(json.dumps(document).encode()), {}, "GC")
    valid = conf.valid_attachments
    assert (None if valid is None else tuple(item.container_id for item in valid)) == found
