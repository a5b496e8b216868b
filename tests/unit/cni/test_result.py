"""Results in every version's format, compared with what upstream printed."""

import json
from ipaddress import ip_interface
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.cni.result import Result, ResultInterface, ResultIP, ResultRoute, parse_result, render_result
from cni_calico.cni.versions import SUPPORTED
from cni_calico.errors import InvalidConfig

VECTORS = Path(__file__).parents[2] / "golden" / "vectors"

DUAL = Result(
    interfaces=(
        ResultInterface("cali5f31907e6ad"),
        ResultInterface("eth0", "f2:06:3f:e2:a3:2a", "/var/run/netns/cni-8616c83c-1d1a-94a0-6a0f-fe86a5442e53", 1500),
    ),
    ips=(ResultIP(ip_interface("10.65.104.0/32"), 1), ResultIP(ip_interface("fd00:65::6800/128"), 1)),
    routes=(ResultRoute("10.65.104.0/26"), ResultRoute("fd00:65::6800/122")),
)


def upstream(section):
    text = (VECTORS / "k8s-pod-netstate.txt").read_text().split(section, 1)[1]
    return json.JSONDecoder().raw_decode(text[text.index("{") :])[0]


def test_the_result_of_upstream():
    assert render_result(DUAL, "0.3.1") == upstream("## calico ADD: stdout, byte for byte")


def test_the_ipam_result_of_upstream():
    ours = Result(
        ips=(ResultIP(ip_interface("10.65.104.0/26")), ResultIP(ip_interface("fd00:65::6800/122"))), routes=DUAL.routes
    )
    assert render_result(ours, "0.3.1") == upstream("## calico-ipam ADD: stdout")


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_old_format(version):
    assert render_result(DUAL, version) == {
        "cniVersion": version,
        "ip4": {"ip": "10.65.104.0/32", "routes": [{"dst": "10.65.104.0/26"}]},
        "ip6": {"ip": "fd00:65::6800/128", "routes": [{"dst": "fd00:65::6800/122"}]},
        "dns": {},
    }


def test_mtu_from_1_0_0_on():
    assert "mtu" not in render_result(DUAL, "0.4.0")["interfaces"][1]
    assert render_result(DUAL, "1.0.0")["interfaces"][1]["mtu"] == 1500
    assert "version" not in render_result(DUAL, "1.1.0")["ips"][0]


@pytest.mark.parametrize("version", SUPPORTED)
def test_read_back(version):
    again = parse_result(render_result(DUAL, version))
    assert [ip.address for ip in again.ips] == [ip.address for ip in DUAL.ips]
    assert again.routes == DUAL.routes
    if version not in ("0.1.0", "0.2.0"):
        assert [item.name for item in again.interfaces] == ["cali5f31907e6ad", "eth0"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["ips", "interfaces", "routes", "dns", "ip4", "ip6", "cniVersion"])


@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_any_result_parses_or_is_refused_by_name(document):
    try:
        parse_result(document)
    except InvalidConfig as e:
        assert "prevResult" in e.message
