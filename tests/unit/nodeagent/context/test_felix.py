"""FELIX_ parameters: environment before node.<name> before default before built-in; nothing is ignored silently."""

from copy import copy

import pytest

from cni_calico.nodeagent.context.configurations import Scoped
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.felix_parser import FelixParser


def test_built_in():
    assert parse_felix({}).settings == FelixSettings()
    assert parse_felix({}).warnings == ()


def test_precedence_is_by_parameter():
    parsed = parse_felix(
        {"FELIX_VXLANMTU": "1400", "OTHER": "1"},
        {"vxlanMTU": 1300, "healthPort": 9199},
        {"vxlanMTU": 1200, "healthPort": 9299, "ipv6Support": False},
    )
    assert parsed.settings.vxlan_mtu == 1400
    assert parsed.settings.health_port == 9199
    assert parsed.settings.ipv6_support is False
    assert parsed.warnings == ()


def test_what_has_not_changed_is_not_parsed_again():
    environ, own = {"FELIX_HEALTHPORT": "9199"}, {"vxlanMTU": 1300}
    parser = FelixParser(environ)
    first = parser.parse(None, None)
    assert first == parse_felix(environ) and parser.parse(None, None) is first
    for given in ((own, None), (None, own), (None, None, Scoped("edge", own)), (own, {"vxlanMTU": 1200})):
        found = parser.parse(*given)
        assert found == parse_felix(environ, *given) and parser.parse(*map(copy, given)) is found
        assert found.settings.vxlan_mtu == 1300


@pytest.mark.parametrize(
    ("name", "text", "attribute", "value"),
    [
        ("FELIX_INTERFACEPREFIX", "cali,tap", "interface_prefixes", ("cali", "tap")),
        ("FELIX_DEFAULTENDPOINTTOHOSTACTION", "accept", "endpoint_to_host", "ACCEPT"),
        ("FELIX_IPV6SUPPORT", "false", "ipv6_support", False),
        ("FELIX_LOGSEVERITYSCREEN", "Warning", "log_severity", "warning"),
        ("FELIX_HEALTHENABLED", "true", "health_enabled", True),
        ("FELIX_PROMETHEUSMETRICSPORT", "9191", "metrics_port", 9191),
        ("FELIX_IPINIPMTU", "1440", "mtu_v4_ipip", 1440),
        ("FELIX_IPTABLESBACKEND", "NFT", "iptables_backend", "nft"),
        ("FELIX_CHAININSERTMODE", "Append", "chain_insert_mode", "append"),
        ("felix_ROUTEREFRESHINTERVAL", "30", "route_refresh_s", 30.0),
        ("FELIX_VXLANMTU", "none", "vxlan_mtu", 0),
        ("FELIX_NATPORTRANGE", "none", "nat_port_range", ""),
        ("FELIX_LOGSEVERITYSCREEN", "none", "log_severity", "none"),
    ],
)
def test_variables_of_todays_manifests(name, text, attribute, value):
    parsed = parse_felix({name: text})
    assert getattr(parsed.settings, attribute) == value
    assert parsed.warnings == ()


def test_resource_spellings():
    parsed = parse_felix({}, None, {"ipipMTU": 1430, "ipipEnabled": True, "routeRefreshInterval": "1m0s"})
    assert parsed.settings.mtu_v4_ipip == 1430
    assert parsed.settings.ipip_enabled is True
    assert parsed.settings.route_refresh_s == 60.0


def test_a_variable_and_a_field_that_are_spelled_differently_are_one_parameter():
    named = {"reportingInterval": "7s", "reportingTTL": "20s", "iptablesLockTimeout": "9s"}
    variables = {
        "FELIX_REPORTINGINTERVALSECS": "7",
        "FELIX_REPORTINGTTLSECS": "20",
        "FELIX_IPTABLESLOCKTIMEOUTSECS": "9",
    }
    assert parse_felix({}, None, named) == parse_felix(variables)
    assert parse_felix(variables).settings.reporting_interval_s == 7.0 and parse_felix(variables).warnings == ()


def test_a_wrong_value_is_told_and_the_next_source_used():
    parsed = parse_felix({"FELIX_HEALTHPORT": "99999"}, {"healthPort": 9199})
    assert parsed.settings.health_port == 9199
    (warning,) = parsed.warnings
    assert "FELIX_HEALTHPORT='99999'" in warning and "1 to 65535" in warning


def test_strangers_are_told():
    parsed = parse_felix(
        {"FELIX_BPFENABLED": "true", "FELIX_HEALTPORT": "1"}, None, {"routeSource": "WorkloadIPs", "bogus": [1]}
    )
    texts = "\n".join(parsed.warnings)
    assert "FELIX_HEALTPORT is unknown" in texts
    assert "routeSource of FelixConfiguration default='WorkloadIPs': routes come from IPAM's blocks" in texts
    assert "bogus of FelixConfiguration default is unknown" in texts


def test_what_startup_stores_is_known():
    parsed = parse_felix({}, {"defaultEndpointToHostAction": "Return"}, {"logSeverityScreen": "Info"})
    assert parsed.settings.endpoint_to_host == "RETURN"
    assert parsed.warnings == ()


def test_a_clusters_defaults_are_no_news():
    stored = {
        "bpfConnectTimeLoadBalancing": "TCP",
        "bpfHostNetworkedNATWithoutCTLB": "Enabled",
        "bpfLogLevel": "",
        "floatingIPs": "Disabled",
        "logSeverityScreen": "Info",
        "nftablesMode": "Auto",
        "reportingInterval": "0s",
    }
    assert parse_felix({}, None, stored).warnings == ()
    assert len(parse_felix({}, None, {**stored, "routeSource": "WorkloadIPs"}).warnings) == 1


def test_the_shortest_interval_that_is_not_off_is_the_resync():
    assert FelixSettings().resync_s == 90.0
    assert FelixSettings(route_refresh_s=0.0, interface_refresh_s=0.0, ipsets_refresh_s=0.0).resync_s == 180.0
    names = ("route", "interface", "iptables", "nftables", "ipsets")
    assert FelixSettings(**{f"{name}_refresh_s": 0.0 for name in names}).resync_s == 0.0


@pytest.mark.parametrize(
    ("environ", "spec", "ports"),
    [
        ({"FELIX_FAILSAFEINBOUNDHOSTPORTS": "tcp:22,tcp:99999"}, {}, [22]),
        ({}, {"failsafeInboundHostPorts": [{"protocol": "tcp", "port": 22}, {"protocol": "tcp", "port": "80"}]}, [22]),
        ({"FELIX_FAILSAFEINBOUNDHOSTPORTS": "tcp:x,udp:y"}, {}, [22, 68, 179, 2379, 2380, 5473, 6443, 6666, 6667]),
    ],
)
def test_one_wrong_failsafe_port_does_not_open_the_built_in_ones(environ, spec, ports):
    """With nothing that can be read the built-in ones stay: without them nobody could reach the node to mend it."""
    parsed = parse_felix(environ, None, spec)
    assert [port.port for port in parsed.settings.failsafe_inbound] == ports
    assert len(parsed.warnings) == 1 and ("in part" in parsed.warnings[0]) == (len(ports) == 1)
