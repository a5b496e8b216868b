"""PURE: the parameters that upstream calls Felix's: FELIX_ variables and FelixConfiguration resources.

Rule: environment > FelixConfiguration node.<name> > FelixConfiguration default > built-in, parameter by parameter. A
value that cannot be parsed is not used, with a warning; of failsafe ports those that can be parsed are. There is also a
warning for an unknown name, and for a parameter of upstream's that this agent does not use. Names are case-insensitive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
)
from cni_calico.directories import RUN_DIR
from cni_calico.model.access import parse_relay_address
from cni_calico.nodeagent.context.host_protection import (
    ENFORCEMENT,
    EXCLUDED,
    FAILSAFE,
    STANDING_RULES,
    failsafe_text,
    select_readable,
)
from cni_calico.nodeagent.context.legacy import ACCESS
from cni_calico.nodeagent.context.recording import FLOW_NAMES, FLOWS, FLUSH_INTERVAL, LOCAL_REPORTER, RETENTION, SERVER
from cni_calico.nodeagent.context.rule_budget import MEMORY_LIMIT, RULE_BUDGET
from cni_calico.nodeagent.context.unused import ELSEWHERE, NOT_ENFORCED
from cni_calico.policy.failsafe import INBOUND, OUTBOUND, FailsafePort

SEVERITIES = choice(
    "debug",
    "info",
    "warning",
    "error",
    "none",
    spellings={"trace": "debug", "warn": "warning", "fatal": "error", "panic": "error"},
)


def parse_mark_mask(text: str) -> int:
    """A 32-bit number, decimal or after 0x, with the two bits that are needed. Raises ValueError."""
    mask = int(text, 0)
    if not 0 < mask <= 0xFFFFFFFF or mask.bit_count() < 2:
        raise ValueError("expected at least two bits of a 32-bit mark")
    return mask


def parse_log_rate(text: str) -> str:
    """The unchanged text. Raises ValueError."""
    count, _, unit = text.partition("/")
    if unit not in ("second", "minute", "hour", "day") or not count.isdigit() or not 0 < int(count) <= 10000:
        raise ValueError("expected a rate such as 10/second, 5/minute, 2/hour or 1/day")
    return text


def parse_relay(text: str) -> str:
    """The unchanged text. Raises ValueError."""
    parse_relay_address(text)
    return text


_ENABLED = choice("Enabled", "Disabled")
MARK_MASK = Kind(parse_mark_mask, "bits, such as 0xffff0000")
LOG_RATE = Kind(parse_log_rate, "N/second, N/minute, N/hour or N/day")
RELAY = Kind(parse_relay, "host:port")
_V4, _V6 = Kind(IPv4Address, "IPv4 address"), Kind(IPv6Address, "IPv6 address")


@dataclass(frozen=True, slots=True)
class FelixSettings:
    """The parameters this agent uses."""

    interface_prefixes: tuple[str, ...] = setting(
        "InterfacePrefix", NAMES, ("cali",), "Prefixes of the names of workloads' interfaces.", section="Interfaces"
    )
    ipv6_support: bool = setting("Ipv6Support", FLAG, True, "Do IPv6.")
    ip_forwarding: str = setting("IPForwarding", _ENABLED, "Enabled", "Switch the host's IP forwarding on.")
    device_route_protocol: int = setting(
        "DeviceRouteProtocol", number(1, 255), 3, "Protocol number of routes to workloads that the agent adds."
    )
    device_route_source: IPv4Address | None = setting(
        "DeviceRouteSourceAddress", _V4, None, "Source address of the host's packets to workloads."
    )
    device_route_source_v6: IPv6Address | None = setting(
        "DeviceRouteSourceAddressIPv6", _V6, None, "The same for IPv6."
    )
    remove_external_routes: bool = setting(
        "RemoveExternalRoutes", FLAG, True, "Remove routes on workloads' interfaces that do not belong there."
    )
    route_sync_disabled: bool = setting("RouteSyncDisabled", FLAG, False, "Leave all routes alone.")
    program_cluster_routes: str = setting(
        "ProgramClusterRoutes",
        _ENABLED,
        "Disabled",
        "The agent, not BIRD, makes the routes to other nodes' blocks of IPIP and unencapsulated pools.",
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
    nat_address: IPv4Address | None = setting("NATOutgoingAddress", _V4, None, "Address to masquerade with.")
    nat_exclusions: str = setting(
        "NATOutgoingExclusions",
        choice("IPPoolsOnly", "IPPoolsAndHostIPs"),
        "IPPoolsOnly",
        "Destinations that are not masqueraded: addresses of pools, or of hosts too.",
    )
    nat_interface: str = setting(
        "IptablesNATOutgoingInterfaceFilter", TEXT, "", "Masquerade only what leaves through this interface."
    )
    endpoint_to_host: str = setting(
        "DefaultEndpointToHostAction",
        choice("DROP", "RETURN", "ACCEPT"),
        "DROP",
        "What happens to packets of workloads to the host itself that their policies let through; ACCEPT and RETURN "
        "leave them to the host's own rules.",
    )
    policy_enforcement: str = setting("PolicyEnforcement", *ENFORCEMENT, section="Policy")
    standing_rules: str = setting("StandingRules", *STANDING_RULES)
    flows: str = setting("Flows", *FLOWS)
    flow_names: str = setting("FlowsNames", *FLOW_NAMES)
    flow_retention_s: float = setting("FlowsRetention", *RETENTION)
    flow_logs_server: str = setting("FlowLogsGoldmaneServer", *SERVER)
    flow_logs_interval_s: float = setting("FlowLogsFlushInterval", *FLUSH_INTERVAL)
    flow_logs_local: str = setting("FlowLogsLocalReporter", *LOCAL_REPORTER)
    policy_rule_budget: int = setting("PolicyRuleBudget", *RULE_BUDGET)
    policy_memory_mib: int = setting("PolicyMemoryLimitMiB", *MEMORY_LIMIT)
    takeover_without_policies: bool = setting(
        "TakeoverWithoutPolicies",
        FLAG,
        False,
        "Not a parameter of upstream's. Remove what upstream's agent left although policies that it enforced on this "
        "node are not enforced by this one.",
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
    filter_deny_action: str = setting("NftablesFilterDenyAction", choice("Drop", "Reject"), "Drop", "What Deny does.")
    mark_mask: int = setting(
        "NftablesMarkMask",
        MARK_MASK,
        0xFFFF0000,
        "Bits of packet marks that the agent may use: at least two, four with legacy iptables.",
        shown_default="0xffff0000",
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
    reporting_interval_s: float = setting(
        "ReportingIntervalSecs",
        SECONDS,
        30.0,
        "How often this host's status is written to etcd; 0: never (what start-up stores for the cluster).",
        section="Health, metrics, logs",
    )
    reporting_ttl_s: float = setting(
        "ReportingTTLSecs", SECONDS, 90.0, "How long that status stays in etcd unless it is renewed."
    )
    health_enabled: bool = setting("HealthEnabled", FLAG, False, "Serve /liveness and /readiness.")
    health_host: str = setting("HealthHost", TEXT, "localhost", "Address of the health pages.")
    health_port: int = setting("HealthPort", PORT, 9099, "Port of the health pages.")
    metrics_enabled: bool = setting("PrometheusMetricsEnabled", FLAG, False, "Serve Prometheus metrics.")
    metrics_host: str = setting("PrometheusMetricsHost", TEXT, "", "Address of the metrics.")
    metrics_port: int = setting("PrometheusMetricsPort", PORT, 9091, "Port of the metrics.")
    log_severity: str = setting("LogSeverityScreen", SEVERITIES, "info", "Log level on stderr.")

    @property
    def resync_s(self) -> float:
        """One full resync serves all kinds: the shortest of the intervals that is not zero; 0 switches it off."""
        intervals = (self.route_refresh_s, self.interface_refresh_s, self.iptables_refresh_s, self.nftables_refresh_s)
        return min(filter(None, intervals), default=0.0)

    relay_address: str = setting(
        "TyphaAddr",
        RELAY,
        "",
        "host:port of the relay (calico-typha) through which the cluster is followed. Relay parameters are read from "
        "the environment only.",
        section="Relay",
    )
    relay_service: str = setting("TyphaK8sServiceName", TEXT, "", "The relays' Service; none or empty: there is none.")
    relay_namespace: str = setting("TyphaK8sNamespace", TEXT, "kube-system", "The Service's namespace.")
    relay_ca: str = setting("TyphaCAFile", TEXT, "", "The certificate authority of the relays; required.")
    relay_certificate: str = setting("TyphaCertFile", TEXT, "", "The agent's certificate; empty: a token is sent.")
    relay_key: str = setting("TyphaKeyFile", TEXT, "", "The certificate's key.")
    relay_token_file: str = setting(
        "TyphaTokenFile", TEXT, "", "Ours: a file with a token that only relays take; empty: they get the API server's."
    )
    relay_common_name: str = setting(
        "TyphaCN", TEXT, "", "Name in relays' certificates; empty: their host's or Service's."
    )
    relay_uri: str = setting("TyphaURISAN", TEXT, "", "A URI that must be among the names of the relays' certificates.")


# Names in a FelixConfiguration of parameters whose FELIX_ variable is spelled differently.
_RESOURCE_NAMES = {
    "ipipmtu": "ipinipmtu",
    "ipipenabled": "ipinipenabled",
    "externalnodeslist": "externalnodescidrlist",
    "iptableslocktimeout": "iptableslocktimeoutsecs",
    "reportinginterval": "reportingintervalsecs",
    "reportingttl": "reportingttlsecs",
}

# What every cluster's FelixConfiguration contains by default: not worth a warning on each node.
_DEFAULTS = {
    "floatingips": "Disabled",
    "bpfconnecttimeloadbalancing": "TCP",
    "bpfhostnetworkednatwithoutctlb": "Enabled",
    "bpfloglevel": "",
}


@dataclass(frozen=True, slots=True)
class Parameters:
    settings: FelixSettings
    warnings: tuple[str, ...]


def parse_felix(
    environ: Mapping[str, str],
    node_spec: Mapping[str, Any] | None = None,
    default_spec: Mapping[str, Any] | None = None,
) -> Parameters:
    """The parameters from FELIX_ variables and the specs of FelixConfiguration node.<name> and default."""
    environment = {name[6:]: value for name, value in environ.items() if name.upper().startswith("FELIX_")}
    sources = (
        ("FELIX_{}", {name.lower(): (name, text) for name, text in environment.items()}),
        ("{} of FelixConfiguration node.<name>", _texts(node_spec)),
        ("{} of FelixConfiguration default", _texts(default_spec)),
    )
    values: dict[str, Any] = {}
    warnings: list[str] = []
    declared = {item.name.lower(): item for item in settings_of(FelixSettings)}
    for label, source in sources:
        for lower, (name, text) in source.items():
            item = declared.get(lower)
            if item is None:
                warnings += _stranger(label.format(name), lower) if _DEFAULTS.get(lower) != text else []
                continue
            if not text:
                continue
            try:
                values.setdefault(item.attribute, _parse(item, text))
            except ValueError as e:
                value = select_readable(text) if item.kind is FAILSAFE else ()  # the built-in list would open more
                warnings.append(f"{label.format(name)}={text!r} is {'used only in part' if value else 'not used'}: {e}")
                if value:
                    values.setdefault(item.attribute, value)
    return Parameters(FelixSettings(**values), tuple(warnings))


def _parse(item: Setting, text: str) -> Any:
    """The value of a text; "none" means the empty value (0, "", false) unless it is a value of the parameter."""
    if text.lower() == "none":
        if item.kind is TEXT:
            return ""
        if isinstance(item.default, (bool, int, float)) or item.default is None:
            return None if item.default is None else type(item.default)()
    return item.kind.parse(text)


def _stranger(label: str, lower: str) -> list[str]:
    if lower in ACCESS or lower.startswith("usagereporting"):
        return []  # legacy.py has read the former; no usage is ever reported to anybody
    if lower in NOT_ENFORCED:
        return [f"{label}: {NOT_ENFORCED[lower]}"]
    if lower.startswith(ELSEWHERE):
        return [f"{label} has no effect: this agent does not use it"]
    return [f"{label} is unknown: no parameter has this name"]


def _texts(spec: Mapping[str, Any] | None) -> dict[str, tuple[str, str]]:
    """A spec's fields as the texts that environment variables would have."""
    out = {}
    for name, value in (spec or {}).items():
        lower = _RESOURCE_NAMES.get(name.lower(), name.lower())
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            text = str(value)
        elif isinstance(value, (list, tuple)) and lower.startswith("failsafe"):
            text = ",".join(map(failsafe_text, value)) or "none"
        elif isinstance(value, (list, tuple)) and all(isinstance(entry, str) for entry in value):
            text = ",".join(value)
        else:
            text = "" if value is None else repr(value)
        out[lower] = (name, text)
    return out
