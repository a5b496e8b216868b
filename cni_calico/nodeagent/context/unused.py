"""PURE: Felix's parameters that are not settings of this agent: what becomes of each, and what the log says.

Rule: every parameter of upstream's is a setting (``FelixSettings``) or a row here; any other name is unknown, and
probably a typing error. The log has a line only where a value asks for something that is then missing; one where the
cluster may be without its services is an error. docs/compatibility.md is printed from this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# what becomes of a parameter: the page's words
ACCEPTED, NEVER, REFUSED, MISSING = "accepted", "never applies", "refused", "not there"


@dataclass(frozen=True, slots=True)
class Unused:
    """``names``: as upstream's references spell variables, separated by blanks. ``here``: what the page says.

    ``lost``: what the log says of a value that is none of ``harmless`` (lower case); "": nothing, whatever the value.
    ``environment``: it is never a field of a FelixConfiguration.
    """

    what: str
    names: str
    here: str
    lost: str = ""
    harmless: tuple[str, ...] = ()
    is_error: bool = False
    environment: bool = False


_OFF = ("false", "disabled", "none", "0", "no", "f", "n")
_BPF_NAMES = """
BPFDisableUnprivileged BPFJITHardening BPFLogLevel BPFConntrackLogLevel BPFConntrackCleanupMode BPFConntrackTimeouts
BPFLogFilters BPFCTLBLogFilter BPFDataIfacePattern BPFL3IfacePattern BPFConnectTimeLoadBalancingEnabled
BPFConnectTimeLoadBalancing BPFHostNetworkedNATWithoutCTLB BPFExternalServiceMode BPFDSROptoutCIDRs
BPFKubeProxyIptablesCleanupEnabled BPFKubeProxyMinSyncPeriod BPFKubeProxyHealthzPort
BPFKubeProxyEndpointSlicesEnabled BPFExtToServiceConnmark BPFPSNATPorts BPFMapSizeNATFrontend BPFMapSizeNATBackend
BPFMapSizeNATAffinity BPFMapSizeRoute BPFMapSizeConntrack BPFMapSizePerCPUConntrack BPFMapSizeConntrackScaling
BPFMapSizeConntrackCleanupQueue BPFMapSizeIPSets BPFMapSizeIfState BPFHostConntrackBypass BPFEnforceRPF
BPFPolicyDebugEnabled BPFForceTrackPacketsFromIfaces BPFDisableGROForIfaces BPFExcludeCIDRsFromNAT BPFRedirectToPeer
BPFAttachType BPFExportBufferSizeMB BPFProfiling BPFMaglevMaxEndpointsPerService BPFMaglevMaxServices
BPFIPFragTimeout BPFIPFragmentReassemblyEnabled BPFOverlayHostSourceIP
XDPEnabled XDPRefreshInterval GenericXDPEnabled SidecarAccelerationEnabled CgroupV2Path
"""
TABLE = (
    Unused(
        ACCEPTED,
        "IptablesFilterAllowAction IptablesMangleAllowAction NftablesFilterAllowAction NftablesMangleAllowAction",
        "what policies let through is still judged by the host's other rules, as with RETURN: they have chains of "
        "their own. With legacy iptables it is accepted there, whatever these say",
    ),
    Unused(
        ACCEPTED,
        "MaxIpsetSize",
        "IP sets of legacy iptables hold 16,777,216 members, and take memory only for those they have",
    ),
    Unused(
        ACCEPTED,
        "IptablesPostWriteCheckIntervalSecs IptablesLockProbeIntervalMillis NetlinkTimeoutSecs",
        "what the agent writes is compared after each change and at each resync; every step has its own deadline",
    ),
    Unused(
        ACCEPTED,
        "IptablesLockFilePath",
        "iptables takes its lock itself, /run/xtables.lock; the log names any other path",
        "iptables uses /run/xtables.lock",
        ("/run/xtables.lock", "none"),
    ),
    Unused(ACCEPTED, "RouteTableRange", "the former name of RouteTableRanges: one range, which is used"),
    Unused(ACCEPTED, "HealthTimeoutOverrides", "what hangs is found by the agent's own limits"),
    Unused(ACCEPTED, "LogSeveritySys", "nothing goes to syslog: the log is standard error, and a file"),
    Unused(
        ACCEPTED,
        "DataplaneWatchdogTimeout",
        "a data plane that hangs is found by the agent's own limits: one that does not read its messages ends liveness",
    ),
    Unused(
        REFUSED,
        "OpenstackRegion",
        "by the variable, which ends the start; a field is named in the log, and nothing else comes of it",
        "OpenStack's regions are not supported",
        ("none",),
    ),
    Unused(
        MISSING,
        "BPFEnabled",
        "an error in the log: there is no eBPF data plane; services need kube-proxy",
        "there is NO eBPF data plane: policies are enforced by the packet filter, but NOBODY PROGRAMS SERVICES unless "
        "kube-proxy runs; start it, or keep upstream's calico-node",
        _OFF,
        is_error=True,
    ),
    Unused(
        MISSING,
        "RouteSource",
        "a warning for WorkloadIPs: routes come from IPAM's blocks, and from pods' CIDRs with USE_POD_CIDR",
        "routes come from IPAM's blocks",
        ("calicoipam",),
    ),
    Unused(NEVER, _BPF_NAMES, "for the eBPF data plane, and XDP"),
    Unused(NEVER, "KubeNodePortRanges", "ip_vs itself says which packets are for services"),
    Unused(
        NEVER,
        "GoGCThreshold GoMemoryLimitMB GoMaxProcs DebugMemoryProfilePath DebugDisableLogDropping "
        "DebugSimulateCalcGraphHangAfter DebugSimulateDataplaneHangAfter DebugSimulateDataplaneApplyDelay DebugHost "
        "DebugPort FeatureGates",
        "for upstream's program, which is written in Go, and its tests",
    ),
    Unused(
        NEVER,
        "FlowLogsCollectorDebugTrace FlowLogsPolicyEvaluationMode",
        "flows are recorded with the rules that decided; there is nothing to trace, or to evaluate again",
    ),
    Unused(
        NEVER,
        "UsageReportingEnabled UsageReportingInitialDelaySecs UsageReportingIntervalSecs",
        "nothing is ever reported to anybody",
    ),
    Unused(NEVER, "WindowsManageFirewallRules WindowsNetworkName", "for Windows"),
    Unused(NEVER, "EndpointReportingEnabled EndpointReportingDelaySecs MetadataAddr MetadataPort", "for OpenStack"),
    Unused(
        NEVER,
        "LocalSubnetL2Reachability LocalSubnetL2ReachabilityRefreshInterval",
        "of other releases: routes to nodes of the same subnet are the kernel's",
    ),
    Unused(NEVER, "TyphaReadTimeout TyphaWriteTimeout", "for Typha's protocol", environment=True),
    Unused(
        NEVER,
        "IgnoreLooseRPF",
        "releases of upstream until 2020 refused to run with `rp_filter=2` unless it was true, which is why guides for "
        "kind set it; here rules check a workload's sources, whatever `rp_filter` is",
        environment=True,
    ),
    Unused(
        NEVER,
        "IPv4VXLANTunnelAddr IPv6VXLANTunnelAddr VXLANTunnelMACAddr VXLANTunnelMACAddrV6 IpInIpTunnelAddr ClusterGUID "
        "ClusterType CalicoVersion Variant",
        "what upstream's agent tells itself; the log names it",
        "it is read from the Node and the ClusterInformation",
        environment=True,
    ),
    Unused(
        NEVER,
        "DebugBPFCgroupV2 DebugCPUProfilePath DebugPanicAfter DebugSimulateDataRace",
        "for tests of upstream's program; the log names it",
        "this agent does not use it",
        environment=True,
    ),
)
_BY_NAME = {name.lower(): row for row in TABLE for name in row.names.split()}


def unused_of(lower: str) -> Unused | None:
    """The row of a parameter, by its name in lower case; None: there is none."""
    return _BY_NAME.get(lower)


def render_loss(row: Unused, text: str) -> str:
    """What is lost by a value; "" for nothing."""
    return "" if not text.strip() or text.strip().lower() in row.harmless else row.lost


def names_of(rows: Iterable[Unused]) -> set[str]:
    """The parameters of some rows."""
    return {name for row in rows for name in row.names.split()}
