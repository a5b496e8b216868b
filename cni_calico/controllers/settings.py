"""PURE: the environment of calico-kube-controllers, and how it is combined with KubeControllersConfiguration.

Rule: a wrong value is an error that names the variable, and all such errors are reported at once; a variable that is
set wins over the resource, an empty one counts as not set. A wrong value in the resource is reported and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cni_calico.controllers.host_endpoints.rules import (
    HostEndpointTemplate,
    HostEndpointWish,
    parse_template,
    render_template,
)
from cni_calico.controllers.loadbalancer.rules import ALL_SERVICES, REQUESTED_ONLY
from cni_calico.daemon.settings_table import (
    DURATION,
    FLAG,
    NAMES,
    TEXT,
    Kind,
    choice,
    number,
    parse_duration_s,
    parse_each,
    setting,
    settings_of,
    settings_table,
)
from cni_calico.errors import InvalidConfig
from cni_calico.model.access import API_GROUP, NATIVE_GROUP, parse_api_group

SECTIONS = {
    "node": "node",
    "policy": "policy",
    "namespace": "namespace",
    "workloadendpoint": "workloadEndpoint",
    "serviceaccount": "serviceAccount",
    "loadbalancer": "loadBalancer",
}
PERIOD_S, COMPACTION_S, METRICS_PORT, GRACE_S = 300.0, 600.0, 9094, 900.0
_NOT_BUILT = {"flannelmigration": "see calicoctl migrate flannel --plan, which moves one node after the other"}
_LEVEL = choice(
    "debug", "info", "warning", "error", "none", spellings={"warn": "warning", "fatal": "error", "panic": "error"}
)
_SWITCH = Kind(lambda text: choice("Enabled", "Disabled").parse(text) == "Enabled", "enabled or disabled")


def _parse_enabled(text: str) -> tuple[str, ...]:
    found = []
    for name in NAMES.parse(text):
        one = "namespace" if name.lower() == "profile" else name.lower()
        if one in _NOT_BUILT:
            raise ValueError(f"{name} is not part of these controllers: {_NOT_BUILT[one]}")
        if one not in SECTIONS:
            raise ValueError(f"there is no controller {name!r}; expected some of {', '.join(SECTIONS)}, profile")
        found.append(one)
    return tuple(dict.fromkeys(found))


_ENABLED = Kind(_parse_enabled, "names of controllers separated by commas")
_WORKERS = number(1, 1000)


def _parse_group(text: str) -> str:
    try:
        return parse_api_group(text, "CALICO_API_GROUP")
    except InvalidConfig as e:
        raise ValueError(f"expected {API_GROUP} or {NATIVE_GROUP}") from e


@settings_table
class ControllersSettings:
    """The variables; None: the variable is not set."""

    enabled: tuple[str, ...] | None = setting(
        "ENABLED_CONTROLLERS", _ENABLED, None, "The controllers that run; unset: KubeControllersConfiguration decides."
    )
    log_level: str | None = setting("LOG_LEVEL", _LEVEL, None, "Log level.")
    period_s: float | None = setting(
        "RECONCILER_PERIOD", DURATION, None, "How often everything is compared again; 0: never."
    )
    compaction_s: float | None = setting("COMPACTION_PERIOD", DURATION, None, "How often etcd is compacted; 0: never.")
    health: bool | None = setting("HEALTH_ENABLED", FLAG, None, "Whether the status file is written.")
    sync_labels: bool | None = setting(
        "SYNC_NODE_LABELS", FLAG, None, "Whether Nodes get the labels of Kubernetes' nodes."
    )
    auto_host_endpoints: bool | None = setting(
        "AUTO_HOST_ENDPOINTS", _SWITCH, None, "Whether every node gets a host endpoint."
    )
    api_group: str = setting(
        "CALICO_API_GROUP",
        Kind(_parse_group, f"{API_GROUP} or {NATIVE_GROUP}"),
        "",
        "API group of the custom resources; empty: the one that the cluster serves.",
    )
    kubeconfig: str = setting("KUBECONFIG", TEXT, "", "kubeconfig file; empty: the pod's service account is used.")
    endpoint_workers: int = setting("WORKLOAD_ENDPOINT_WORKERS", _WORKERS, 1, "Accepted; one thread suffices.")
    profile_workers: int = setting("PROFILE_WORKERS", _WORKERS, 1, "Accepted.")
    policy_workers: int = setting("POLICY_WORKERS", _WORKERS, 1, "Accepted.")
    node_workers: int = setting("NODE_WORKERS", _WORKERS, 1, "Accepted.")


def parse_environment(environ: Mapping[str, str]) -> ControllersSettings:
    """Raises InvalidConfig naming every variable that is wrong."""
    values, wrong = parse_each(ControllersSettings, environ)
    if wrong:
        raise InvalidConfig("cannot use the environment: " + "; ".join(wrong.values()))
    return ControllersSettings(**values)


# -- the resource -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """The settings in force. ``periods_s`` has the controllers that run; 0: no period."""

    periods_s: Mapping[str, float]
    log_level: str
    health: bool
    compaction_s: float
    metrics_port: int
    sync_labels: bool
    assign_ips: str = ALL_SERVICES
    host_endpoints: HostEndpointWish = field(default_factory=HostEndpointWish)
    grace_s: float = GRACE_S
    wrong: tuple[str, ...] = field(default=(), compare=False)


DEFAULT_SPEC: Mapping[str, Any] = {
    "logSeverityScreen": "Info",
    "healthChecks": "Enabled",
    "etcdV3CompactionPeriod": "10m0s",
    "prometheusMetricsPort": METRICS_PORT,
    "controllers": {
        "node": {
            "reconcilerPeriod": "5m0s",
            "syncLabels": "Enabled",
            "hostEndpoint": {"autoCreate": "Disabled", "createDefaultHostEndpoint": "Enabled"},
            "leakGracePeriod": "15m0s",
        },
        "policy": {"reconcilerPeriod": "5m0s"},
        "workloadEndpoint": {"reconcilerPeriod": "5m0s"},
        "serviceAccount": {"reconcilerPeriod": "5m0s"},
        "namespace": {"reconcilerPeriod": "5m0s"},
        "loadBalancer": {"assignIPs": "AllServices"},
    },
}


class _ResourceReader:
    """Reads values of the resource; a wrong one is noted and counts as not given."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def object(self, value: Any, at: str) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong.append(f"{at} must be an object")
            return {}
        return value

    def duration_s(self, within: Mapping[str, Any], name: str, at: str, otherwise: float) -> float:
        value = within.get(name)
        if value in (None, ""):
            return otherwise
        try:
            return parse_duration_s(value if isinstance(value, str) else repr(value))
        except ValueError as e:
            self.wrong.append(f"{at}.{name}: {e}, not {value!r}")
            return otherwise

    def switch(self, within: Mapping[str, Any], name: str, at: str, otherwise: bool) -> bool:
        value = within.get(name)
        if value in ("Enabled", "Disabled"):
            return bool(value == "Enabled")
        if value not in (None, ""):
            self.wrong.append(f"{at}.{name}: expected Enabled or Disabled, not {value!r}")
        return otherwise


def merge(settings: ControllersSettings, spec: Any) -> Running:
    """Combine the environment and the resource's spec; without a resource its defaults count."""
    reading = _ResourceReader()
    spec = reading.object(DEFAULT_SPEC if spec is None else spec, "spec")
    given = reading.object(spec.get("controllers"), "spec.controllers")
    sections = {name: reading.object(given.get(key), f"spec.controllers.{key}") for name, key in SECTIONS.items()}
    enabled = settings.enabled
    if enabled is None:
        enabled = tuple(name for name, key in SECTIONS.items() if given.get(key) is not None)
    periods_s = {
        name: reading.duration_s(sections[name], "reconcilerPeriod", f"spec.controllers.{SECTIONS[name]}", PERIOD_S)
        if settings.period_s is None
        else settings.period_s
        for name in enabled
    }
    port = spec.get("prometheusMetricsPort")
    if port is not None and (not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535):
        reading.wrong.append(f"spec.prometheusMetricsPort: expected a port or 0, not {port!r}")
        port = None
    compaction_s = reading.duration_s(spec, "etcdV3CompactionPeriod", "spec", COMPACTION_S)
    health = reading.switch(spec, "healthChecks", "spec", True)
    sync_labels = reading.switch(sections["node"], "syncLabels", "spec.controllers.node", True)
    assign_ips = sections["loadbalancer"].get("assignIPs") or ALL_SERVICES
    if assign_ips not in (ALL_SERVICES, REQUESTED_ONLY):
        reading.wrong.append(
            f"spec.controllers.loadBalancer.assignIPs: expected {ALL_SERVICES} or {REQUESTED_ONLY}, not {assign_ips!r}"
        )
        assign_ips = ALL_SERVICES
    return Running(
        periods_s=periods_s,
        log_level=settings.log_level or _level(reading, spec),
        health=health if settings.health is None else settings.health,
        compaction_s=compaction_s if settings.compaction_s is None else settings.compaction_s,
        metrics_port=METRICS_PORT if port is None else port,
        sync_labels=sync_labels if settings.sync_labels is None else settings.sync_labels,
        assign_ips=assign_ips,
        host_endpoints=_host_endpoints(settings, reading, sections["node"]),
        grace_s=reading.duration_s(sections["node"], "leakGracePeriod", "spec.controllers.node", GRACE_S),
        wrong=tuple(reading.wrong),
    )


def _host_endpoints(
    settings: ControllersSettings, reading: _ResourceReader, node: Mapping[str, Any]
) -> HostEndpointWish:
    """A template that cannot be used is left out; the others count."""
    at = "spec.controllers.node.hostEndpoint"
    given = reading.object(node.get("hostEndpoint"), at)
    auto = reading.switch(given, "autoCreate", at, False)
    listed = given.get("templates") or ()
    templates: list[HostEndpointTemplate] = []
    for place, value in enumerate(listed if isinstance(listed, (list, tuple)) else (listed,)):
        try:
            templates.append(parse_template(value))
        except ValueError as e:
            reading.wrong.append(f"{at}.templates[{place}]: {e}")
    return HostEndpointWish(
        auto=auto if settings.auto_host_endpoints is None else settings.auto_host_endpoints,
        default=reading.switch(given, "createDefaultHostEndpoint", at, True),
        templates=tuple(templates),
    )


def _level(reading: _ResourceReader, spec: Mapping[str, Any]) -> str:
    value = spec.get("logSeverityScreen")
    if value in (None, ""):
        return "info"
    try:
        level: str = _LEVEL.parse(str(value))
        return level
    except ValueError as e:
        reading.wrong.append(f"spec.logSeverityScreen: {e}, not {value!r}")
        return "info"


def render_status(
    settings: ControllersSettings, running: Running, environ: Mapping[str, str], *, is_kubernetes: bool = False
) -> dict[str, Any]:
    """The resource's status: what is in force, and the variables that decided it.

    Empty lists are left out, as upstream's writer does: its readers take ``templates: []`` for templates that replace
    the default host endpoint. ``is_kubernetes``: the datastore is Kubernetes, where labels of nodes are not copied.
    """
    controllers: dict[str, Any] = {}
    for name, period_s in running.periods_s.items():
        controllers[SECTIONS[name]] = {"reconcilerPeriod": render_duration(period_s)}
    if "node" in running.periods_s:
        wish = running.host_endpoints
        controllers["node"] |= {
            "syncLabels": _switch(running.sync_labels and not is_kubernetes),
            "leakGracePeriod": render_duration(running.grace_s),
            "hostEndpoint": {
                "autoCreate": _switch(wish.auto),
                "createDefaultHostEndpoint": _switch(wish.default),
            },
        }
        if wish.templates:
            controllers["node"]["hostEndpoint"]["templates"] = [render_template(found) for found in wish.templates]
    if "loadbalancer" in running.periods_s:
        controllers["loadBalancer"] = {"assignIPs": running.assign_ips}
    counted = {
        one.name: environ[one.name].strip()
        for one in settings_of(ControllersSettings)
        if one.name != "KUBECONFIG" and environ.get(one.name, "").strip() and not one.name.endswith("_WORKERS")
    }
    return {
        "environmentVars": counted,
        "runningConfig": {
            "controllers": controllers,
            "etcdV3CompactionPeriod": render_duration(running.compaction_s),
            "healthChecks": _switch(running.health),
            "logSeverityScreen": running.log_level.capitalize(),
            "prometheusMetricsPort": running.metrics_port,
        },
    }


def _switch(on: bool) -> str:
    return "Enabled" if on else "Disabled"


def render_duration(seconds: float) -> str:
    """As Go writes it: "5m0s", "1h0m0s", "0s", "1.5s"."""
    whole, rest = divmod(seconds, 60)
    text = f"{rest:g}s"
    if not whole:
        return text
    hours, minutes = divmod(int(whole), 60)
    return (f"{hours}h" if hours else "") + f"{minutes}m{text}"
