"""PURE: rules for FelixConfiguration.

Rule: a table has each field's type and values. If upstream finds a text instead of a number, or a word it does not
know, it drops the whole record, and every Felix loses its configuration; so such values are refused. Source: upstream's
API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cni_calico.model.interface_patterns import require_pattern
from cni_calico.model.validation.felix_fields import DURATIONS
from cni_calico.model.validation.report import SEVERITIES, SWITCH, Report, Spec

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "awsSrcDstCheck": ("DoNothing", "Enable", "Disable"),
    "bpfAttachType": ("TC", "TCX"),
    "bpfConnectTimeLoadBalancing": ("TCP", *SWITCH),
    "bpfConntrackLogLevel": ("Off", "Debug"),
    "bpfConntrackMode": ("Auto", "Userspace", "BPFProgram"),
    "bpfExternalServiceMode": ("Tunnel", "DSR"),
    "bpfHostNetworkedNATWithoutCTLB": SWITCH,
    "bpfJITHardening": ("Auto", "Strict"),
    "bpfLogLevel": ("Off", "Info", "Debug"),
    "bpfMapSizeConntrackScaling": ("Disabled", "DoubleIfFull"),
    "bpfProfiling": SWITCH,
    "bpfRedirectToPeer": ("Enabled", "Disabled", "L2Only"),
    "defaultEndpointToHostAction": ("Drop", "Accept", "Return"),
    "floatingIPs": SWITCH,
    "flowLogsLocalReporter": SWITCH,
    "flowLogsPolicyEvaluationMode": ("None", "Continuous"),
    "ipForwarding": SWITCH,
    "iptablesBackend": ("Auto", "Legacy", "NFT"),
    "iptablesFilterAllowAction": ("Accept", "Return"),
    "iptablesFilterDenyAction": ("Drop", "Reject"),
    "iptablesMangleAllowAction": ("Accept", "Return"),
    "istioAmbientMode": SWITCH,
    "logSeverityFile": SEVERITIES,
    "logSeverityScreen": SEVERITIES,
    "logSeveritySys": SEVERITIES,
    "nftablesFilterAllowAction": ("Accept", "Return"),
    "nftablesFilterDenyAction": ("Drop", "Reject"),
    "nftablesMangleAllowAction": ("Accept", "Return"),
    "nftablesMode": ("Auto", *SWITCH),
    "programClusterRoutes": SWITCH,
    "routeSource": ("WorkloadIPs", "CalicoIPAM"),
    "windowsManageFirewallRules": SWITCH,
}
_ANY_CASE: Mapping[str, tuple[str, ...]] = {  # upstream accepts these in any case
    "bpfEnforceRPF": ("Disabled", "Strict", "Loose"),
    "chainInsertMode": ("Insert", "Append"),
    "serviceLoopPrevention": ("Drop", "Reject", "Disabled"),
    "workloadSourceSpoofing": ("Disabled", "Any"),
}
_FLAG_NAMES = """
allowIPIPPacketsFromWorkloads allowVXLANPacketsFromWorkloads bpfConnectTimeLoadBalancingEnabled
bpfDisableUnprivileged bpfEnabled bpfHostConntrackBypass bpfIPFragmentReassemblyEnabled
bpfKubeProxyEndpointSlicesEnabled bpfKubeProxyIptablesCleanupEnabled bpfPolicyDebugEnabled
debugDisableLogDropping disableConntrackInvalidCheck endpointReportingEnabled flowLogsCollectorDebugTrace
genericXDPEnabled healthEnabled ipipEnabled ipv6Support prometheusGoMetricsEnabled prometheusMetricsEnabled
prometheusProcessMetricsEnabled prometheusWireGuardMetricsEnabled removeExternalRoutes requireMTUFile
routeSyncDisabled sidecarAccelerationEnabled usageReportingEnabled useInternalDataplaneDriver vxlanEnabled
wireguardEnabled wireguardEnabledV6 wireguardHostEncryptionEnabled wireguardThreadingEnabled xdpEnabled
"""
_FLAGS = frozenset(_FLAG_NAMES.split())
_PORT, _MTU, _MARK = (0, 65535), (0, 1 << 31), (0, (1 << 32) - 1)
_INTEGER = (-(1 << 31), (1 << 31) - 1)
_INTEGER_NAMES = """
bpfExportBufferSizeMB bpfExtToServiceConnmark bpfMaglevMaxEndpointsPerService bpfMaglevMaxServices
bpfMapSizeConntrack bpfMapSizeConntrackCleanupQueue bpfMapSizeIPSets bpfMapSizeIfState bpfMapSizeNATAffinity
bpfMapSizeNATBackend bpfMapSizeNATFrontend bpfMapSizePerCpuConntrack bpfMapSizeRoute goGCThreshold
goMaxProcs goMemoryLimitMB ipv4ElevatedRoutePriority ipv4NormalRoutePriority ipv6ElevatedRoutePriority
ipv6NormalRoutePriority logActionRateLimitBurst maxIpsetSize wireguardRoutingRulePriority
"""
_NUMBERS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("healthPort", "prometheusMetricsPort", "vxlanPort", "debugPort", "metadataPort"), _PORT),
    **dict.fromkeys(("wireguardListeningPort", "wireguardListeningPortV6", "bpfKubeProxyHealthzPort"), _PORT),
    **dict.fromkeys(("ipipMTU", "vxlanMTU", "vxlanMTUV6", "wireguardMTU", "wireguardMTUV6"), _MTU),
    **dict.fromkeys(("iptablesMarkMask", "nftablesMarkMask"), _MARK),
    "deviceRouteProtocol": (0, 255),
    "vxlanVNI": (0, (1 << 24) - 1),
    **dict.fromkeys(
        _INTEGER_NAMES.split(),
        _INTEGER,
    ),
}
_ADDRESSES = {"natOutgoingAddress": 4, "deviceRouteSourceAddress": 4, "deviceRouteSourceAddressIPv6": 6}
_LISTS = ("bpfDSROptoutCIDRs", "bpfExcludeCIDRsFromNAT", "bpfForceTrackPacketsFromIfaces")
_TABLES_MAX, _TABLE_ID_MAX, _OLD_TABLE_MAX = 0xFFFF, 0xFFFFFFFF, 250
_REGION = re.compile(r"[a-z0-9]([-a-z0-9]{0,44}[a-z0-9])?")
_PROTOCOLS = ("TCP", "UDP", "SCTP")


def check_felix(report: Report, spec: Spec) -> None:
    for field, value in spec.items():
        at = f"spec.{field}"
        if field in _CHOICES:
            report.choice(at, value, _CHOICES[field])
        elif field in _ANY_CASE:
            known = {choice.lower(): choice for choice in _ANY_CASE[field]}
            text = report.string(at, value)
            if text and text.lower() not in known:
                report.wrong(at, value, "must be one of " + ", ".join(_ANY_CASE[field]))
        elif field in _FLAGS:
            report.boolean(at, value)
        elif field in _NUMBERS:
            report.number(at, value, *_NUMBERS[field])
        elif field in DURATIONS:
            report.duration(at, value)
        elif field in _ADDRESSES and value not in (None, ""):
            report.address(at, value, _ADDRESSES[field])
    report.selector("spec.nodeSelector", spec.get("nodeSelector"))
    _check_lists(report, spec)
    _check_tables(report, spec)
    region = report.string("spec.openstackRegion", spec.get("openstackRegion"))
    if region and not _REGION.fullmatch(region):
        report.wrong("spec.openstackRegion", region, "must be a DNS label of at most 46 characters")
    _check_excluded(report, report.string("spec.interfaceExclude", spec.get("interfaceExclude")) or "")


def _check_excluded(report: Report, listed: str) -> None:
    """Names of interfaces, and regular expressions between slashes."""
    for item in filter(None, map(str.strip, listed.split(","))):
        try:
            require_pattern(item)
        except ValueError as e:
            report.wrong("spec.interfaceExclude", item, f"cannot be used: {e}")


def _check_lists(report: Report, spec: Spec) -> None:
    for direction in ("Inbound", "Outbound"):
        field = f"spec.failsafe{direction}HostPorts"
        for i, raw in enumerate(report.list(field, spec.get(f"failsafe{direction}HostPorts"))):
            _check_failsafe(report, f"{field}[{i}]", report.object(f"{field}[{i}]", raw))
    for i, raw in enumerate(report.list("spec.externalNodesList", spec.get("externalNodesList"))):
        report.network_or_address(f"spec.externalNodesList[{i}]", raw, 4)
    for field in _LISTS:
        for i, raw in enumerate(report.list(f"spec.{field}", spec.get(field))):
            report.string(f"spec.{field}[{i}]", raw)
    for i, raw in enumerate(report.list("spec.healthTimeoutOverrides", spec.get("healthTimeoutOverrides"))):
        at = f"spec.healthTimeoutOverrides[{i}]"
        override = report.object(at, raw)
        if not report.string(f"{at}.name", override.get("name")):
            report.wrong(f"{at}.name", override.get("name"), "must be given")
        report.duration(f"{at}.timeout", override.get("timeout"))
    if len(report.list("spec.kubeNodePortRanges", spec.get("kubeNodePortRanges"))) > 7:
        report.wrong("spec.kubeNodePortRanges", spec["kubeNodePortRanges"], "must have at most 7 ranges")


def _check_failsafe(report: Report, at: str, port: Spec) -> None:
    if port.get("port") is None:
        report.wrong(f"{at}.port", None, "must be given")
    report.number(f"{at}.port", port.get("port"), 0, 65535)
    protocol = report.string(f"{at}.protocol", port.get("protocol"))
    if protocol and protocol.upper() not in _PROTOCOLS:
        report.wrong(f"{at}.protocol", protocol, "must be one of " + ", ".join(_PROTOCOLS))
    if port.get("net"):
        report.network_or_address(f"{at}.net", port["net"])


def _check_tables(report: Report, spec: Spec) -> None:
    if spec.get("routeTableRange") is not None and spec.get("routeTableRanges") is not None:
        report.wrong("spec.routeTableRange", spec["routeTableRange"], "cannot be given together with routeTableRanges")
    if spec.get("routeTableRange") is not None:
        _check_range(report, "spec.routeTableRange", spec["routeTableRange"], _OLD_TABLE_MAX)
    total = 0
    for i, raw in enumerate(report.list("spec.routeTableRanges", spec.get("routeTableRanges"))):
        total += _check_range(report, f"spec.routeTableRanges[{i}]", raw, _TABLE_ID_MAX)
    if total > _TABLES_MAX:
        report.wrong("spec.routeTableRanges", spec["routeTableRanges"], f"must have at most {_TABLES_MAX} tables")


def _check_range(report: Report, at: str, raw: Any, highest: int) -> int:
    """The number of tables in a range; 0 for a wrong range."""
    tables = report.object(at, raw)
    low, high = (report.number(f"{at}.{end}", tables.get(end), 1, highest) for end in ("min", "max"))
    for end in ("min", "max"):
        if tables.get(end) is None:
            report.wrong(f"{at}.{end}", None, "must be given")
    if low is None or high is None:
        return 0
    if low > high:
        report.wrong(f"{at}.min", low, f"is greater than max, which is {high}")
        return 0
    return high - low + 1
