"""Every field of a FelixConfiguration with a value of upstream's schema, and what the log says of it."""

from __future__ import annotations

import pytest

from cni_calico.daemon.settings_table import settings_of
from cni_calico.model.validation.check import require_valid
from cni_calico.model.validation.felix_fields import KNOWN
from cni_calico.nodeagent.context.configurations import RESOURCE_NAMES
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.unused import TABLE, unused_of

PORT_22, RANGE = [{"protocol": "TCP", "port": 22}], {"min": 1, "max": 250}
# of upstream's schema; no value is the built-in one where there is another
VALUES: dict[str, object] = {
    **dict.fromkeys(["allowIPIPPacketsFromWorkloads", "allowVXLANPacketsFromWorkloads"], True),
    "awsSrcDstCheck": "Disable",
    "bpfAttachType": "TC",
    "bpfCTLBLogFilter": "all",
    "bpfConnectTimeLoadBalancing": "Disabled",
    "bpfConntrackLogLevel": "Debug",
    "bpfConntrackMode": "Userspace",
    "bpfConntrackTimeouts": {"creationGracePeriod": "10s"},
    "bpfDSROptoutCIDRs": ["10.0.0.0/8"],
    **dict.fromkeys(["bpfDataIfacePattern", "bpfL3IfacePattern", "bpfDisableGROForIfaces"], "^eth.*"),
    "bpfEnforceRPF": "Strict",
    "bpfExcludeCIDRsFromNAT": ["10.0.0.0/8"],
    "bpfExternalServiceMode": "DSR",
    "bpfForceTrackPacketsFromIfaces": ["docker+"],
    "bpfHostNetworkedNATWithoutCTLB": "Disabled",
    "bpfJITHardening": "Strict",
    "bpfIPFragTimeout": "5s",
    "bpfKubeProxyMinSyncPeriod": "1s",
    "bpfLogFilters": {"all": "host 10.0.0.1"},
    "bpfLogLevel": "Debug",
    "bpfMapSizeConntrackScaling": "Disabled",
    "bpfOverlayHostSourceIP": "HostIP",
    "bpfPSNATPorts": "20000:29999",
    "bpfProfiling": "Enabled",
    "bpfRedirectToPeer": "Disabled",
    "cgroupV2Path": "/run/calico/cgroup",
    "chainInsertMode": "Append",
    "dataplaneDriver": "calico-iptables-plugin",
    "debugHost": "localhost",
    "debugMemoryProfilePath": "/tmp/heap",
    "defaultEndpointToHostAction": "Accept",
    "deviceRouteProtocol": 80,
    "deviceRouteSourceAddress": "10.0.0.1",
    "deviceRouteSourceAddressIPv6": "fd00::1",
    "endpointStatusPathPrefix": "/run/calico",
    "externalNodesList": ["10.0.0.9"],
    **dict.fromkeys(["failsafeInboundHostPorts", "failsafeOutboundHostPorts"], PORT_22),
    "featureDetectOverride": "MASQFullyRandom=false",
    "featureGates": "BPFConnectTimeLoadBalancingWorkaround=enabled",
    "floatingIPs": "Enabled",
    "flowLogsGoldmaneServer": "goldmane:7443",
    "flowLogsLocalReporter": "Enabled",
    "flowLogsPolicyEvaluationMode": "None",
    "healthHost": "0.0.0.0",
    "healthTimeoutOverrides": [{"name": "InternalDataplaneMainLoop", "timeout": "5m"}],
    "interfaceExclude": "kube-ipvs0,/^docker/",
    "interfacePrefix": "cali,tap",
    "ipForwarding": "Disabled",
    "iptablesBackend": "Legacy",
    **dict.fromkeys(["iptablesFilterAllowAction", "iptablesMangleAllowAction"], "Return"),
    **dict.fromkeys(["nftablesFilterAllowAction", "nftablesMangleAllowAction"], "Return"),
    **dict.fromkeys(["iptablesFilterDenyAction", "nftablesFilterDenyAction"], "Reject"),
    "iptablesLockFilePath": "/run/other.lock",
    "iptablesNATOutgoingInterfaceFilter": "eth0",
    "ipv4ElevatedRoutePriority": 100,
    "ipv6ElevatedRoutePriority": 100,
    "ipv4NormalRoutePriority": 2000,
    "ipv6NormalRoutePriority": 2000,
    "istioAmbientMode": "Enabled",
    "istioDSCPMark": 30,
    "kubeNodePortRanges": ["30000:32767"],
    "liveMigrationRouteConvergenceTime": "30s",
    "localSubnetL2Reachability": "Enabled",
    "logActionRateLimit": "10/second",
    "logDebugFilenameRegex": "loop",
    "logFilePath": "/var/log/calico/felix.log",
    "logPrefix": "denied",
    **dict.fromkeys(["logSeverityFile", "logSeverityScreen", "logSeveritySys"], "Warning"),
    "metadataAddr": "127.0.0.1",
    "mtuIfacePattern": "^eth",
    "natOutgoingAddress": "10.0.0.1",
    "natOutgoingExclusions": "IPPoolsAndHostIPs",
    "natPortRange": "32768:65535",
    "nftablesMode": "Enabled",
    "nodeSelector": "has(rack)",
    "openstackRegion": "east",
    "policySyncPathPrefix": "/var/run/nodeagent",
    "programClusterRoutes": "Enabled",
    "prometheusMetricsClientAuth": "NoClientCert",
    "prometheusMetricsHost": "127.0.0.1",
    **{f"prometheusMetrics{kind}File": f"/etc/tls/{kind}" for kind in ("CA", "Cert", "Key")},
    "routeSource": "WorkloadIPs",
    "routeTableRange": RANGE,
    "routeTableRanges": [RANGE],
    "serviceLoopPrevention": "Reject",
    "useInternalDataplaneDriver": False,
    "windowsManageFirewallRules": "Enabled",
    "windowsNetworkName": "(?i)calico.*",
    "wireguardInterfaceName": "wg0",
    "wireguardInterfaceNameV6": "wg1",
    "wireguardKeepAlive": "25s",
    "workloadSourceSpoofing": "Any",
    "iptablesMarkMask": 0xFF00,
    "nftablesMarkMask": 0xFF00,
    "flowLogsFlushInterval": "15s",
    "standingRules": "Disabled",
    "vxlanVNI": 1,
}
SECONDS = ("Interval", "Delay", "TTL", "Timeout", "HangAfter", "ApplyDelay")
# what the log says, behind the field's name and value; for all others nothing
LINES = {
    "iptablesLockFilePath": "iptables uses /run/xtables.lock",
    "openstackRegion": "not supported",
    "routeSource": "routes come from IPAM's blocks",
}


def value_of(field: str) -> object:
    if field in VALUES:
        return VALUES[field]
    if field.endswith(SECONDS):
        return "10s"
    return 20000 if field.endswith(WHOLE) or field.startswith("bpfMap") else True


WHOLE_NAMES = """
Port PortV6 MTU MTUV6 Burst Mark MB Services Service Size Priority Threshold Connmark Procs Budget MiB Total
"""
WHOLE = tuple(WHOLE_NAMES.split())


@pytest.mark.parametrize("field", sorted(KNOWN))
def test_what_the_log_says_of_each_field(field: str) -> None:
    value = 9999 if field.endswith("Burst") else value_of(field)
    found = parse_felix({}, None, {field: value})
    said = (*found.warnings, *found.errors)
    if field == "bpfEnabled":
        assert found.warnings == () and "NOBODY PROGRAMS SERVICES" in found.errors[0]
    elif field in LINES:
        [line] = found.warnings
        assert line.startswith(f"{field} of FelixConfiguration default='") and LINES[field] in line
    else:
        assert said == (), said


@pytest.mark.parametrize("field", sorted(KNOWN))
def test_upstreams_schema_takes_the_value(field: str) -> None:
    """By our own check, which refuses what upstream's would."""
    value = 9999 if field.endswith("Burst") else value_of(field)
    document = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "FelixConfiguration",
        "metadata": {"name": "default"},
        "spec": {field: value},
    }
    require_valid(document)


def test_each_field_is_a_setting_or_a_row() -> None:
    used = {item.name.lower() for item in settings_of(FelixSettings)}
    for field in KNOWN - {"nodeSelector"}:
        lower = RESOURCE_NAMES.get(field.lower(), field.lower())
        assert (lower in used) != (unused_of(lower) is not None), field


@pytest.mark.parametrize("row", [row for row in TABLE if row.lost], ids=lambda row: row.names.split()[0])
def test_nothing_is_said_where_nothing_is_lost(row) -> None:
    """In any case of the letters, empty or with blanks."""
    for name in row.names.split():
        for text in ("", *row.harmless, *(text.upper() for text in row.harmless)):
            found = parse_felix({f"FELIX_{name.upper()}": text})
            assert (found.warnings, found.errors) == ((), ())
        found = parse_felix({f"FELIX_{name.upper()}": "something"})
        assert len((*found.warnings, *found.errors)) == 1
