"""PURE: the parameter Flows: what is recorded of connections, with the rule that decided; and where that is exported.

Rule: unless somebody asks for more or less, what is denied is recorded, and that costs nobody anything who is not
denied: nothing is judged, no record more is followed, and where nothing is decided nothing is started. Who says that
it is off has it off, whatever else is set.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cni_calico.daemon.settings_table import Kind, choice, number, parse_seconds, setting, settings_table
from cni_calico.flows.limits import USUAL_LIMITS, FlowLimits
from cni_calico.model.access import parse_relay_address
from cni_calico.nodeagent.context.encryption import EncryptionSettings

ENABLED, DISABLED, DENIED, AUTO = "Enabled", "Disabled", "Denied", "Auto"
_LONGEST_S = 3600.0  # as far back as the collector goes
_SHORTEST_KEPT_S, _LONGEST_KEPT_S = 3600, 30 * 86400
FLOWS = (
    choice(ENABLED, DENIED, DISABLED, AUTO),
    AUTO,
    "Not a parameter of upstream's. Record every new connection, or only denied ones, with the rule that decided; "
    "Auto: every one if flows are exported, else denied ones, once policies are in force.",
)


def _parse_server(text: str) -> str:
    """The unchanged text; "" for none. Raises ValueError."""
    if text.lower() == "none":
        return ""
    parse_relay_address(text)
    if not text.rpartition("]")[2].rpartition(":")[1]:
        raise ValueError(f"expected host:port, not {text!r}")
    return text


def _parse_retention(text: str) -> float:
    seconds = parse_seconds(text)
    if not _SHORTEST_KEPT_S <= seconds <= _LONGEST_KEPT_S:
        raise ValueError("expected from 1h to 720h")
    return seconds


def _parse_interval(text: str) -> float:
    seconds = parse_seconds(text)
    if not 1 <= seconds <= _LONGEST_S:
        raise ValueError(f"expected from 1 to {_LONGEST_S:g} seconds")
    return seconds


RETENTION = (
    Kind(_parse_retention, "seconds, or a duration such as 12h, from 1h to 720h"),
    86400.0,
    "Not a parameter of upstream's. How long the sums of flows are kept, as far as there is room for them.",
)
RATE = (
    number(100, 1_000_000),
    USUAL_LIMITS.rate,
    "Not a parameter of upstream's. How many packets that are let through are recorded in a second, and a quarter as "
    "many denied ones; what comes beyond that is counted as lost, unless its sender has little of it.",
)
LIVE = (
    number(1000, 10_000_000),
    USUAL_LIMITS.live,
    "Not a parameter of upstream's. How many connections are followed until they end, each in half a kilobyte of "
    "memory; of more the oldest stay recorded as open.",
)
SERVER = (
    Kind(_parse_server, "host:port"),
    "",
    "host:port of Goldmane, to which flows are exported, with TyphaCAFile, TyphaCertFile and TyphaKeyFile; records "
    "flows unless Flows says which.",
)
FLUSH_INTERVAL = (
    Kind(_parse_interval, "seconds, or a duration such as 1m30s, up to an hour"),
    300.0,
    "How often flows are exported: one update for equal ones.",
)
LOCAL_REPORTER = (
    choice(ENABLED, DISABLED),
    DISABLED,
    "Export flows to calico-node -flows too, while it runs on this node; records flows unless Flows says which.",
)

HOST_ENDPOINTS = (
    choice(ENABLED, DISABLED),
    ENABLED,
    "Not a parameter of upstream's. Export also what host endpoints decide about connections of the host itself; "
    "calicoctl flows has it in any case.",
)

ALL, LOCAL = "All", "Local"
FLOW_NAMES = (
    choice(ALL, LOCAL, AUTO),
    AUTO,
    "Not a parameter of upstream's. Whose names flows have: of all nodes' workloads, network sets and services, which "
    "the agent then follows, or of this node's workloads only; Auto: of all if flows are exported to Goldmane.",
)


@settings_table
class RecordingSettings(EncryptionSettings):
    """What is recorded of connections, and where that is exported. Upon those of encryption: tables with slots have one
    line of bases.
    """

    flows: str = setting("Flows", *FLOWS, section="Flows")
    flow_names: str = setting("FlowsNames", *FLOW_NAMES)
    flow_retention_s: float = setting("FlowsRetention", *RETENTION)
    flow_rate: int = setting("FlowsMaxRate", *RATE)
    flow_live: int = setting("FlowsMaxLive", *LIVE)
    flow_logs_server: str = setting("FlowLogsGoldmaneServer", *SERVER)
    flow_logs_interval_s: float = setting("FlowLogsFlushInterval", *FLUSH_INTERVAL)
    flow_logs_local: str = setting("FlowLogsLocalReporter", *LOCAL_REPORTER)
    flow_host_endpoints: str = setting("FlowsHostEndpoints", *HOST_ENDPOINTS)


class FlowSettings(Protocol):
    """The parameters of flows."""

    @property
    def flows(self) -> str: ...

    @property
    def flow_logs_server(self) -> str: ...

    @property
    def flow_logs_local(self) -> str: ...

    @property
    def flow_names(self) -> str: ...


def flow_limits(settings: RecordingSettings) -> FlowLimits:
    return FlowLimits(settings.flow_rate, settings.flow_live)


def exports_flows(settings: FlowSettings) -> bool:
    return settings.flows != DISABLED and asks_for_export(settings)


def asks_for_export(settings: FlowSettings) -> bool:
    """Also where nothing is recorded that could be exported."""
    return bool(settings.flow_logs_server) or settings.flow_logs_local == ENABLED


def recorded_flows(settings: FlowSettings) -> str:
    """Of which flows there are records: Enabled, Denied, Disabled."""
    if settings.flows != AUTO:
        return settings.flows
    return ENABLED if exports_flows(settings) else DENIED


class WantedRecording(NamedTuple):
    """What a recorder is to do. ``flows``: Enabled, Denied, Disabled. ``judges``: it works out what the rules in force,
    and staged policies, say of what it records. ``asked``: somebody wants it, so that it runs also where nothing is
    decided so far.
    """

    flows: str
    judges: bool = True
    asked: bool = True


def wanted_recording(settings: FlowSettings) -> WantedRecording:
    flows, exports = recorded_flows(settings), exports_flows(settings)
    return WantedRecording(flows, flows == ENABLED or (flows == DENIED and exports), settings.flows != AUTO or exports)


def names_all(settings: FlowSettings) -> bool:
    """Whether flows are recorded with the names of other nodes' workloads."""
    if recorded_flows(settings) == DISABLED:
        return False
    return settings.flow_names == ALL or (settings.flow_names == AUTO and bool(settings.flow_logs_server))
