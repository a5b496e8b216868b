"""PURE: the parameters that upstream calls Felix's: FELIX_ variables and FelixConfiguration resources.

Rule: environment > FelixConfiguration node.<name> > the one whose nodeSelector selects the node > default > built-in,
parameter by parameter. A value that cannot be parsed is not used, with a warning; of failsafe ports those that can be
parsed are. There is also a warning for an unknown name, and for a value of upstream's that asks for something that this
agent does not do (unused.py). Names are case-insensitive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

from cni_calico.daemon.settings_table import (
    FLAG,
    MTU,
    NAMES,
    NETWORKS,
    PORT,
    SECONDS,
    TEXT,
    Kind,
    Setting,
    choice,
    number,
    setting,
    settings_of,
    settings_table,
)
from cni_calico.directories import RUN_DIR
from cni_calico.nodeagent.context.configurations import NOT_SCOPED, FelixFields, Scoped, sources_of
from cni_calico.nodeagent.context.driver import DRIVER, INTERNAL_DRIVER
from cni_calico.nodeagent.context.encryption import describe_own_ports
from cni_calico.nodeagent.context.features import FEATURES, Features, select_features
from cni_calico.nodeagent.context.host_protection import (
    ENFORCEMENT,
    EXCLUDED,
    FAILSAFE,
    STANDING_RULES,
    select_readable,
)
from cni_calico.nodeagent.context.kinds import (
    DENY,
    DSCP,
    ENABLED,
    EXPRESSION,
    LOG_RATE,
    MARK_MASK,
    NOT_CHANGED,
    PRIORITY,
    SOURCE_CHECK,
    V4,
    V6,
)
from cni_calico.nodeagent.context.legacy import ACCESS
from cni_calico.nodeagent.context.policy_sync import SYNC_PREFIX
from cni_calico.nodeagent.context.recording import RecordingSettings
from cni_calico.nodeagent.context.rule_budget import MEMORY_LIMIT, RULE_BUDGET, RULE_TOTAL
from cni_calico.nodeagent.context.unused import render_loss, unused_of
from cni_calico.policy.failsafe import INBOUND, OUTBOUND, FailsafePort


@settings_table
class FelixSettings(RecordingSettings):
    """The parameters this agent uses."""

    interface_prefixes: tuple[str, ...] = setting(
        "InterfacePrefix", NAMES, ("cali",), "Prefixes of the names of workloads' interfaces.", section="Interfaces"
    )
    ipv6_support: bool = setting("Ipv6Support", FLAG, True, "Do IPv6.")
    ip_forwarding: str = setting("IPForwarding", ENABLED, "Enabled", "Switch the host's IP forwarding on.")
    device_route_protocol: int = setting(
        "DeviceRouteProtocol", number(1, 255), 3, "Protocol number of routes to workloads that the agent adds."
    )
    device_route_source: IPv4Address | None = setting(
        "DeviceRouteSourceAddress", V4, None, "Source address of the host's packets to workloads."
    )
    device_route_source_v6: IPv6Address | None = setting("DeviceRouteSourceAddressIPv6", V6, None, "The same for IPv6.")
    normal_priority: int = setting(
        "IPv4NormalRoutePriority",
        PRIORITY,
        1024,
        "Metric of the agent's routes to workloads; has to be the BGPConfiguration's ipv4NormalRoutePriority.",
    )
    normal_priority_v6: int = setting("IPv6NormalRoutePriority", PRIORITY, 1024, "The same for IPv6.")
    elevated_priority: int = setting(
        "IPv4ElevatedRoutePriority",
        PRIORITY,
        512,
        "Metric of the route to a virtual machine that has just come to this node; lower than the normal one.",
    )
    elevated_priority_v6: int = setting("IPv6ElevatedRoutePriority", PRIORITY, 512, "The same for IPv6.")
    migration_convergence_s: float = setting(
        "LiveMigrationRouteConvergenceTime",
        SECONDS,
        30.0,
        "How long that route keeps that metric after the end of the live migration.",
    )
    remove_external_routes: bool = setting(
        "RemoveExternalRoutes", FLAG, True, "Remove routes on workloads' interfaces that do not belong there."
    )
    route_sync_disabled: bool = setting("RouteSyncDisabled", FLAG, False, "Leave all routes alone.")
    program_cluster_routes: str = setting(
        "ProgramClusterRoutes",
        ENABLED,
        "Disabled",
        "The agent, not BIRD, makes the routes to other nodes' blocks of IPIP and unencapsulated pools.",
    )
    mtu_interfaces: re.Pattern[str] | None = setting(
        "MTUIfacePattern",
        EXPRESSION,
        None,
        "Interfaces whose smallest MTU is the node's, of those that are up; unset: those with the node's addresses.",
    )
    require_mtu_file: bool = setting(
        "RequireMTUFile", FLAG, False, "The node is not ready while the file with workloads' MTU cannot be written."
    )
    mtu_v4_ipip: int = setting(
        "IpInIpMtu", MTU, 0, "MTU of tunl0; 0: the node's MTU less 20.", section="Tunnels", shown_default="0"
    )
    ipip_enabled: bool | None = setting("IpInIpEnabled", FLAG, None, "Create tunl0; unset: if a pool needs it.")
    vxlan_enabled: bool | None = setting("VXLANEnabled", FLAG, None, "Create VXLAN devices; unset: if pools need them.")
    vxlan_mtu: int = setting("VXLANMTU", MTU, 0, "MTU of vxlan.calico; 0: the node's MTU less 50.")
    vxlan_mtu_v6: int = setting("VXLANMTUV6", MTU, 0, "MTU of vxlan-v6.calico; 0: the node's MTU less 70.")
    vxlan_port: int = setting("VXLANPort", PORT, 4789, "UDP port of VXLAN.")
    vxlan_vni: int = setting("VXLANVNI", number(1, 16777215), 4096, "VXLAN network identifier.")
    aws_source_check: str = setting(
        "AWSSrcDstCheck",
        SOURCE_CHECK,
        NOT_CHANGED,
        "What to do with EC2's check of sources and destinations; the node is not ready until it is done.",
    )
    iptables_backend: str = setting(
        "IptablesBackend",
        choice("auto", "nft", "legacy"),
        "auto",
        "The kind of rules that the host's iptables makes; decides where natOutgoing is done.",
        section="Packet filter",
    )
    nftables_mode: str = setting(
        "NFTablesMode",
        choice("Auto", "Enabled", "Disabled"),
        "Auto",
        "Use nftables; Disabled: legacy iptables, where installed, for policies (with ipset) and for natOutgoing.",
    )
    chain_insert_mode: str = setting(
        "ChainInsertMode", choice("insert", "append"), "insert", "Where rules go in chains of the legacy iptables."
    )
    iptables_lock_s: float = setting(
        "IptablesLockTimeoutSecs", SECONDS, 5.0, "How long to wait for the lock of the legacy iptables."
    )
    nat_port_range: str = setting("NATPortRange", TEXT, "", "Source ports of masqueraded connections, MIN:MAX.")
    nat_address: IPv4Address | None = setting("NATOutgoingAddress", V4, None, "Address to masquerade with.")
    nat_exclusions: str = setting(
        "NATOutgoingExclusions",
        choice("IPPoolsOnly", "IPPoolsAndHostIPs"),
        "IPPoolsOnly",
        "Destinations that are not masqueraded: addresses of pools, or of hosts too.",
    )
    nat_interface: str = setting(
        "IptablesNATOutgoingInterfaceFilter", TEXT, "", "Masquerade only what leaves through this interface."
    )
    floating_ips: str = setting(
        "FloatingIPs",
        ENABLED,
        "Disabled",
        "Translate the floating IPs of pods (annotation cni.projectcalico.org/floatingIPs) to their own addresses.",
    )
    features: Features = setting(
        "FeatureDetectOverride",
        FEATURES,
        (),
        "What the kernel can do, whatever its version says: ChecksumOffloadBroken=true has it compute the checksums "
        "of tunnels, MASQFullyRandom=false and SNATFullyRandom=false do not change masqueraded ports at random.",
    )
    endpoint_to_host: str = setting(
        "DefaultEndpointToHostAction",
        choice("DROP", "RETURN", "ACCEPT"),
        "DROP",
        "What happens to packets of workloads to the host itself that their policies let through; ACCEPT and RETURN "
        "leave them to the host's own rules.",
    )
    istio_ambient: str = setting(
        "IstioAmbientMode",
        ENABLED,
        "Disabled",
        "Mark new TCP connections between pods of Istio's mesh (label istio.io/dataplane-mode) for ztunnel.",
    )
    istio_dscp: int = setting("IstioDSCPMark", DSCP, 23, "The DSCP that these packets get.")
    policy_enforcement: str = setting("PolicyEnforcement", *ENFORCEMENT, section="Policy")
    standing_rules: str = setting("StandingRules", *STANDING_RULES)
    policy_sync_prefix: str = setting("PolicySyncPathPrefix", *SYNC_PREFIX)
    internal_driver: bool = setting("UseInternalDataplaneDriver", *INTERNAL_DRIVER)
    dataplane_driver: str = setting("DataplaneDriver", *DRIVER)
    policy_rule_budget: int = setting("PolicyRuleBudget", *RULE_BUDGET)
    policy_rule_total: int = setting("PolicyRuleTotal", *RULE_TOTAL)
    policy_memory_mib: int = setting("PolicyMemoryLimitMiB", *MEMORY_LIMIT)
    takeover_without_policies: bool = setting(
        "TakeoverWithoutPolicies",
        FLAG,
        False,
        "Not a parameter of upstream's. Remove what upstream's agent left although policies that it enforced on this "
        "node are not enforced by this one.",
    )
    takeover_with_ipvs: bool = setting(
        "TakeoverWithIPVS",
        FLAG,
        False,
        "Not a parameter of upstream's. Take a node over from upstream's agent although kube-proxy runs in mode ipvs, "
        "and this agent uses legacy iptables.",
    )
    failsafe_inbound: tuple[FailsafePort, ...] = setting(
        "FailsafeInboundHostPorts",
        FAILSAFE,
        INBOUND,
        "Ports of this node that stay open whatever host endpoints' policies deny; none: no port.",
        shown_default="tcp:22,udp:68,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667",
    )
    failsafe_outbound: tuple[FailsafePort, ...] = setting(
        "FailsafeOutboundHostPorts",
        FAILSAFE,
        OUTBOUND,
        "Ports that this node can always connect to, whatever host endpoints' policies deny; none: no port.",
        shown_default="udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667",
    )
    interface_exclude: tuple[str, ...] = setting(
        "InterfaceExclude", EXCLUDED, ("kube-ipvs0",), "Interfaces that no host endpoint ever gets."
    )
    allow_vxlan_from_workloads: bool = setting(
        "AllowVXLANPacketsFromWorkloads", FLAG, False, "Let workloads send packets to the VXLAN port."
    )
    allow_ipip_from_workloads: bool = setting(
        "AllowIPIPPacketsFromWorkloads", FLAG, False, "Let workloads send IPIP packets."
    )
    workload_source_spoofing: str = setting(
        "WorkloadSourceSpoofing",
        choice("Disabled", "Any"),
        "Disabled",
        "Any: workloads may use the source addresses in their annotation cni.projectcalico.org/allowedSourcePrefixes.",
    )
    external_nodes: tuple[IPv4Network | IPv6Network, ...] = setting(
        "ExternalNodesCIDRList",
        NETWORKS,
        (),
        "Other hosts whose VXLAN and IPIP packets are accepted; in a FelixConfiguration externalNodesList.",
        shown_default="",
    )
    service_loop_prevention: str = setting(
        "ServiceLoopPrevention",
        choice("Drop", "Reject", "Disabled"),
        "Drop",
        "What happens to forwarded packets to a service's address (BGPConfiguration) that was not translated.",
    )
    filter_deny_action: str = setting("NftablesFilterDenyAction", DENY, "Drop", "What Deny does.")
    iptables_deny_action: str | None = setting(
        "IptablesFilterDenyAction",
        DENY,
        None,
        "The same by its older name: counts unless NftablesFilterDenyAction is set, or if NFTablesMode is Disabled.",
    )
    mark_mask: int = setting(
        "NftablesMarkMask",
        MARK_MASK,
        0xFFFF0000,
        "Bits of packet marks that the agent may use: at least two, four with legacy iptables.",
        shown_default="0xffff0000",
    )
    iptables_mark_mask: int | None = setting(
        "IptablesMarkMask",
        MARK_MASK,
        None,
        "The same by its older name: counts unless NftablesMarkMask is set, or if NFTablesMode is Disabled.",
    )
    disable_invalid_check: bool = setting(
        "DisableConntrackInvalidCheck", FLAG, False, "Do not drop packets that connection tracking considers invalid."
    )
    log_prefix: str = setting(
        "LogPrefix",
        TEXT,
        "calico-packet",
        "Prefix of the lines of the action Log; %t %k %n %p: tier, kind, name, path.",
    )
    log_rate: str = setting(
        "LogActionRateLimit",
        LOG_RATE,
        "",
        "The maximum rate of lines of the action Log for each rule: 10/second, 5/minute.",
    )
    log_burst: int = setting("LogActionRateLimitBurst", number(0, 9999), 5, "This many more lines in a burst.")
    endpoint_status_prefix: str = setting(
        "EndpointStatusPathPrefix",
        TEXT,
        RUN_DIR,
        "Directory of endpoint-status/, whose files say for which endpoints policy is in force; none: no files.",
    )
    route_refresh_s: float = setting(
        "RouteRefreshInterval", SECONDS, 90.0, "How often routes are compared with the wanted ones.", section="Resync"
    )
    interface_refresh_s: float = setting(
        "InterfaceRefreshInterval", SECONDS, 90.0, "How often interfaces are compared."
    )
    iptables_refresh_s: float = setting(
        "IptablesRefreshInterval", SECONDS, 180.0, "How often legacy iptables is compared."
    )
    nftables_refresh_s: float = setting("NftablesRefreshInterval", SECONDS, 180.0, "How often nftables is compared.")
    ipsets_refresh_s: float = setting("IpsetsRefreshInterval", SECONDS, 90.0, "How often sets are compared.")

    @property
    def resync_s(self) -> float:
        """One full resync serves all kinds: the shortest of the intervals that is not zero; 0 switches it off."""
        links = (self.route_refresh_s, self.interface_refresh_s)
        return min(
            filter(None, (*links, self.iptables_refresh_s, self.nftables_refresh_s, self.ipsets_refresh_s)), default=0.0
        )


# of lists that are wrong in part, the rest; of ports the built-in list would open more
_READABLE: Mapping[Kind, Callable[[str], tuple[Any, ...]]] = {FAILSAFE: select_readable, FEATURES: select_features}


@dataclass(frozen=True, slots=True)
class Parameters:
    """``errors`` are as ``warnings``, where the cluster may be without something that it cannot do without."""

    settings: FelixSettings
    warnings: tuple[str, ...]
    errors: tuple[str, ...] = ()


def parse_felix(
    environ: Mapping[str, str],
    node_spec: FelixFields | None = None,
    default_spec: FelixFields | None = None,
    scoped: Scoped = NOT_SCOPED,
) -> Parameters:
    """The parameters from FELIX_ variables and from the FelixConfigurations (``configurations.spec_of``) node.<name>,
    default, and the one that selects the node.
    """
    values: dict[str, Any] = {}
    warnings: list[str] = []
    errors: list[str] = []
    declared = {item.name.lower(): item for item in settings_of(FelixSettings)}
    for label, source in sources_of(environ, node_spec, default_spec, scoped):
        for lower, (name, text) in source.items():
            item = declared.get(lower)
            if item is None:
                row = unused_of(lower)
                if row is None and lower not in ACCESS:  # legacy.py has read these
                    warnings.append(f"{label.format(name)} is unknown: no parameter has this name")
                elif row is not None and (lost := render_loss(row, text)):
                    (errors if row.is_error else warnings).append(f"{label.format(name)}={text!r}: {lost}")
                continue
            if not text:
                continue
            try:
                values.setdefault(item.attribute, _parse(item, text))
            except ValueError as e:
                value = _READABLE[item.kind](text) if item.kind in _READABLE else ()
                warnings.append(f"{label.format(name)}={text!r} is {'used only in part' if value else 'not used'}: {e}")
                if value:
                    values.setdefault(item.attribute, value)
    warnings += describe_own_ports({"node.<name>": node_spec, scoped.name: scoped.spec}, default_spec)
    return Parameters(_with_twins(values), (*warnings, *scoped.warnings), tuple(errors))


def _with_twins(values: Mapping[str, Any]) -> FelixSettings:
    """Of what upstream has twice, for iptables and for nftables, the former counts unless the latter is set; with
    NFTablesMode Disabled it wins.
    """
    found = FelixSettings(**values)
    wins = found.nftables_mode == "Disabled"
    deny, mask = found.iptables_deny_action, found.iptables_mark_mask
    if deny is not None and (wins or "filter_deny_action" not in values):
        found = replace(found, filter_deny_action=deny)
    if mask is not None and (wins or "mark_mask" not in values):
        found = replace(found, mark_mask=mask)
    return found


def _parse(item: Setting, text: str) -> Any:
    """The value of a text; "none" means the empty value (0, "", false) unless it is a value of the parameter."""
    if text.lower() != "none":
        return item.kind.parse(text)
    if item.kind is TEXT:
        return ""
    try:
        return None if item.kind is EXPRESSION else item.kind.parse(text)
    except ValueError:
        if item.default is None or isinstance(item.default, (bool, int, float)):
            return None if item.default is None else type(item.default)()
        raise
