"""PURE: the network configuration on stdin, parsed into validated values.

Rule: every key is validated here, before anything is allocated; unknown keys are ignored. Source: upstream's
types.NetConf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface, ip_network
from typing import Any

from cni_calico.cni import versions
from cni_calico.cni.dataplane import ExternalDataplane
from cni_calico.cni.fields import JsonFields, wrong
from cni_calico.cni.mesos import MesosLabels, parse_mesos
from cni_calico.directories import NODENAME_FILE, RUN_DIR
from cni_calico.errors import DecodeFailure, IncompatibleVersion, InvalidConfig
from cni_calico.model import names
from cni_calico.model.access import (
    LOCAL_PATH,
    DatastoreConfig,
    KubernetesAccess,
    parse_api_group,
    parse_proxy_variables,
    without_prefixes,
)
from cni_calico.redaction import shown_url

ENDPOINT_STATUS_DIR = f"{RUN_DIR}/endpoint-status"
MTU_MAX = 65535
NODE_NAME_MAX = 253
QUEUES_MAX = 4096  # the kernel's limit for veth


@dataclass(frozen=True, slots=True)
class IpamSection:
    """The ``ipam`` object; ``raw`` is what a delegated plugin gets."""

    type: str = ""
    assign_ipv4: bool = True
    assign_ipv6: bool = False
    ipv4_pools: tuple[str, ...] = ()
    ipv6_pools: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_calico(self) -> bool:
        return self.type == "calico-ipam"


@dataclass(frozen=True, slots=True)
class LogSection:
    """``level`` is lower case; sizes in MB, ages in days, 0 means the default."""

    level: str = "info"
    file_path: str = ""
    file_max_size_mb: int = 100
    file_max_age_days: int = 30
    file_max_count: int = 10


@dataclass(frozen=True, slots=True)
class ValidAttachment:
    """An entry of cni.dev/valid-attachments."""

    container_id: str
    ifname: str


MEMBERS, ANYONE = "members", "anyone"


@dataclass(frozen=True, slots=True)
class NetConf:
    """The configuration of one plugin of a network. ``mtu`` 0 means: determine it."""

    name: str
    cni_version: str
    type: str
    datastore: DatastoreConfig
    ipam: IpamSection
    log: LogSection
    raw: Mapping[str, Any]
    mtu: int = 0
    num_queues: int = 1
    nodename: str = ""
    hostname: str = ""
    nodename_file: str = NODENAME_FILE
    nodename_file_optional: bool = False
    kubernetes_node_name: str = ""
    policy_type: str = ""
    include_default_routes: bool = False
    allow_ip_forwarding: bool = False
    ip_addrs_no_ipam: bool = False
    floating_ips: bool = False
    readiness_gates: tuple[str, ...] = ()
    policy_setup_timeout_s: int | None = None  # None: not in the configuration
    endpoint_status_dir: str = ""  # "": where calico-node says, else ENDPOINT_STATUS_DIR
    require_mtu_file: bool = False
    sticky_addresses: bool = False  # of containers that have a name, outside Kubernetes
    profile_ingress: str = MEMBERS
    ipam_lock_file: str = ""
    dns: Mapping[str, Any] = field(default_factory=dict)
    mesos: MesosLabels = field(default_factory=MesosLabels)
    runtime_config: Mapping[str, Any] = field(default_factory=dict)
    prev_result: Mapping[str, Any] | None = None
    valid_attachments: tuple[ValidAttachment, ...] | None = None
    dataplane: ExternalDataplane | None = None


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):  # it could not be written as JSON again
        raise ValueError(f"{text} is too large for a number")
    return value


def parse_json(stdin: bytes) -> Mapping[str, Any]:
    """The JSON object on stdin. Raises DecodeFailure."""
    try:
        document = json.loads(stdin, parse_constant=_refuse_number, parse_float=_parse_float)
    except (ValueError, RecursionError) as e:
        raise DecodeFailure(
            f"cannot decode the network configuration: {e if isinstance(e, ValueError) else 'nested too deeply'}",
            details="stdin must hold one JSON object; a plugin is called by a runtime, or by cnitool from a .conflist",
        ) from e
    if not isinstance(document, dict):
        raise DecodeFailure(
            f"cannot decode the network configuration: expected an object, got {type(document).__name__}"
        )
    return document


def parse_version(document: Mapping[str, Any], command: str) -> str:
    """The configuration's cniVersion, allowed for ``command``. Raises IncompatibleVersion."""
    version = document.get("cniVersion")
    if version is None or version == "":
        version = versions.WHEN_ABSENT
    if version not in versions.SUPPORTED:
        raise IncompatibleVersion(
            f"incompatible CNI versions: config is {version!r}, plugin supports {list(versions.SUPPORTED)}"
        )
    if not versions.allows(version, command):
        raise IncompatibleVersion(f"config version does not allow {command}: cniVersion is {version}")
    return str(version)


def parse_netconf(document: Mapping[str, Any], environ: Mapping[str, str], command: str = "ADD") -> NetConf:
    """The configuration in a decoded JSON object; the caller's environment fills in what it leaves open.

    Raises IncompatibleVersion, InvalidConfig.
    """
    version = parse_version(document, command)
    top = JsonFields(document)
    name = top.text("name")
    _require_network_name(name)
    control = top.section("feature_control")
    kubernetes = top.section("kubernetes")
    return NetConf(
        name=name,
        cni_version=version,
        type=top.text("type"),
        datastore=parse_datastore(top, environ),
        ipam=_parse_ipam(top.section("ipam")),
        log=_parse_log(top),
        raw=document,
        mtu=top.number("mtu", high=MTU_MAX),
        num_queues=top.number("num_queues", 1, high=QUEUES_MAX) or 1,
        nodename=_parse_node_name(top, "nodename"),
        hostname=_parse_node_name(top, "hostname"),
        nodename_file=top.text("nodename_file") or NODENAME_FILE,
        nodename_file_optional=top.flag("nodename_file_optional"),
        kubernetes_node_name=kubernetes.text("node_name").strip(),
        policy_type=top.section("policy").text("type"),
        include_default_routes=top.flag("include_default_routes"),
        allow_ip_forwarding=top.section("container_settings").flag("allow_ip_forwarding"),
        ip_addrs_no_ipam=control.flag("ip_addrs_no_ipam"),
        floating_ips=control.flag("floating_ips"),
        readiness_gates=_parse_gates(top),
        policy_setup_timeout_s=_parse_policy_timeout(top),
        endpoint_status_dir=top.text("endpoint_status_dir"),
        require_mtu_file=top.flag("require_mtu_file"),
        sticky_addresses=top.flag("sticky_addresses"),
        profile_ingress=_parse_profile_ingress(top),
        ipam_lock_file=top.text("ipam_lock_file"),
        dns=top.mapping("dns"),
        mesos=parse_mesos(top.section("args")),
        runtime_config=top.mapping("runtimeConfig"),
        prev_result=None if document.get("prevResult") is None else top.mapping("prevResult"),
        valid_attachments=_parse_attachments(top),
        dataplane=_parse_dataplane(top),
    )


def _parse_profile_ingress(top: JsonFields) -> str:
    """From whom the network's profile lets in; only where there is no Kubernetes."""
    value = top.text("profile_ingress") or MEMBERS
    if value not in (MEMBERS, ANYONE):
        raise wrong("profile_ingress", f"{MEMBERS} or {ANYONE}", value)
    return value


def _require_network_name(name: str) -> None:
    if not name:
        raise InvalidConfig("missing network name", details='the configuration needs a "name"')
    if not names.valid_identifier(name) or len(name) > names.NETWORK_NAME_MAX:
        shown = name if len(name) <= 80 else name[:77] + "..."
        raise InvalidConfig(
            f"invalid characters found in network name: {shown!r}",
            details=f"a name matches [a-zA-Z0-9][a-zA-Z0-9_.-]*, at most {names.NETWORK_NAME_MAX} characters",
        )


def _parse_dataplane(top: JsonFields) -> ExternalDataplane | None:
    if top.values.get("dataplane_options") in (None, {}):
        return None
    from cni_calico.cni.dataplane import parse_dataplane  # few configurations need this import

    return parse_dataplane(top.section("dataplane_options"))


def require_node_name(name: str, where: str) -> None:
    """Check a node's name, which becomes part of keys. Raises InvalidConfig."""
    if not names.valid_identifier(name) or len(name) > NODE_NAME_MAX:
        raise wrong(where, f"a node's name ([a-zA-Z0-9_.-], at most {NODE_NAME_MAX} characters)", name)


def _parse_node_name(top: JsonFields, key: str) -> str:
    name = top.text(key).strip()
    if name:
        require_node_name(name, key)
    return name


def _parse_gates(top: JsonFields) -> tuple[str, ...]:
    gates = top.texts("readiness_gates")
    for gate in gates:
        scheme, separator, rest = gate.partition("://")
        host = rest.partition("/")[0]
        if scheme not in ("http", "https") or not separator or not host or not gate.isascii() or not gate.isprintable():
            raise InvalidConfig(
                f"Invalid URL set for ReadinessGates: {shown_url(gate)!r}",
                details="readiness_gates holds http and https URLs",
            )
    return gates


def _parse_policy_timeout(top: JsonFields) -> int | None:
    if top.values.get("policy_setup_timeout_seconds") in (None, ""):
        return None
    timeout = top.number("policy_setup_timeout_seconds", low=-(2**31))
    if timeout < 0:
        raise wrong("policy_setup_timeout_seconds", "a number of seconds, 0 or more", timeout)
    return timeout


def _parse_ipam(ipam: JsonFields) -> IpamSection:
    kind = ipam.text("type")
    if "/" in kind or kind in (".", ".."):
        raise wrong("ipam.type", "the name of an IPAM plugin", kind)
    return IpamSection(
        type=kind,
        assign_ipv4=ipam.flag("assign_ipv4", True),
        assign_ipv6=ipam.flag("assign_ipv6", False),
        ipv4_pools=_pools(ipam, "ipv4_pools", 4),
        ipv6_pools=_pools(ipam, "ipv6_pools", 6),
        raw=ipam.values,
    )


def _pools(ipam: JsonFields, name: str, family: int) -> tuple[str, ...]:
    pools = ipam.texts(name)
    for pool in pools:
        if "/" in pool or ":" in pool:
            try:
                cidr = ip_network(pool, strict=False)
            except ValueError as e:
                raise InvalidConfig(f'error parsing pool "{pool}": invalid CIDR address: {pool}') from e
            if cidr.version != family:
                raise wrong(f"ipam.{name}", f"IPv{family} pools", pool)
    return pools


LEVELS = ("debug", "info", "warning", "warn", "error", "fatal", "panic", "none")


def _parse_log(top: JsonFields) -> LogSection:
    level = top.text("log_level", "info").lower() or "info"
    return LogSection(
        level=level if level in LEVELS else "info",
        file_path=top.text("log_file_path"),
        file_max_size_mb=top.number("log_file_max_size") or 100,
        file_max_age_days=top.number("log_file_max_age") or 30,
        file_max_count=top.number("log_file_max_count") or 10,
    )


def parse_datastore(top: JsonFields, environ: Mapping[str, str]) -> DatastoreConfig:
    """The datastore of a configuration; what it leaves open comes from the environment, as in upstream."""
    environ = without_prefixes(environ)

    def setting(key: str, variable: str) -> str:
        return top.text(key) or environ.get(variable, "")

    endpoints = setting("etcd_endpoints", "ETCD_ENDPOINTS")
    authority = setting("etcd_authority", "ETCD_AUTHORITY")
    if not endpoints and authority:
        endpoints = f"{setting('etcd_scheme', 'ETCD_SCHEME') or 'http'}://{authority}"
    srv = setting("etcd_discovery_srv", "ETCD_DISCOVERY_SRV")
    kind = setting("datastore_type", "DATASTORE_TYPE") or ("etcdv3" if endpoints or srv else "kubernetes")
    if kind not in ("local", "etcdv3", "kubernetes"):
        raise InvalidConfig(
            f"unknown datastore type: {kind}",
            details=f"{'datastore_type' if top.values else 'DATASTORE_TYPE'} must be local, etcdv3 or kubernetes",
        )
    if kind == "etcdv3" and not endpoints and not srv:
        raise InvalidConfig(
            "no etcd endpoints specified",
            details="set etcd_endpoints in the configuration, or ETCD_ENDPOINTS"
            if top.values
            else "set ETCD_ENDPOINTS",
        )
    return DatastoreConfig(
        type=kind,
        path=setting("datastore_path", "DATASTORE_PATH") or LOCAL_PATH,
        etcd_endpoints=tuple(filter(None, (part.strip() for part in endpoints.split(",")))),
        etcd_discovery_srv=srv,
        etcd_key_file=setting("etcd_key_file", "ETCD_KEY_FILE"),
        etcd_cert_file=setting("etcd_cert_file", "ETCD_CERT_FILE"),
        etcd_ca_cert_file=setting("etcd_ca_cert_file", "ETCD_CA_CERT_FILE"),
        etcd_username=environ.get("ETCD_USERNAME", ""),
        etcd_password=environ.get("ETCD_PASSWORD", ""),
        kubernetes=_parse_kubernetes(top, environ),
    )


def _parse_kubernetes(top: JsonFields, environ: Mapping[str, str]) -> KubernetesAccess:
    kubernetes, policy = top.section("kubernetes"), top.section("policy")
    https_proxy, no_proxy = parse_proxy_variables(environ)
    return KubernetesAccess(
        kubeconfig=kubernetes.text("kubeconfig") or environ.get("KUBECONFIG", ""),
        api_root=kubernetes.text("k8s_api_root") or policy.text("k8s_api_root"),
        token=policy.text("k8s_auth_token"),
        client_certificate=policy.text("k8s_client_certificate"),
        client_key=policy.text("k8s_client_key"),
        certificate_authority=policy.text("k8s_certificate_authority"),
        qps=top.real("qps"),
        burst=top.number("burst"),
        https_proxy=https_proxy,
        no_proxy=no_proxy,
        api_group=_parse_group(top, environ),
    )


def _parse_group(top: JsonFields, environ: Mapping[str, str]) -> str:
    group = parse_api_group(top.text("calico_api_group"), "calico_api_group")
    return group or parse_api_group(environ.get("CALICO_API_GROUP", ""), "CALICO_API_GROUP")


def _parse_attachments(top: JsonFields) -> tuple[ValidAttachment, ...] | None:
    """None if the runtime passes no list; null counts as an empty list, because runtimes in Go write one that way."""
    given = [key for key in ("cni.dev/valid-attachments", "cni.dev/attachments") if key in top.values]
    if not given:
        return None
    key = next((key for key in given if top.values[key] is not None), given[0])
    found = []
    for entry in top.objects(key):
        entry_fields = JsonFields(entry, f"{key}.")
        attachment = ValidAttachment(entry_fields.text("containerID"), entry_fields.text("ifname"))
        if not attachment.container_id or not attachment.ifname:
            raise wrong(key, "objects with containerID and ifname", entry)
        found.append(attachment)
    return tuple(found)


def parse_prefixed(text: Any, field_name: str) -> IPv4Interface | IPv6Interface:
    """An address with prefix in a result. Raises InvalidConfig."""
    try:
        return ip_interface(text)
    except (ValueError, TypeError) as e:
        raise wrong(field_name, "an IP address with prefix", text) from e
