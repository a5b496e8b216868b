"""PURE: the CNI_* environment and CNI_ARGS of a call, parsed into a validated Call.

Rule: everything is validated before anything is done; an error names the variable and the value.
Source: CNI specification 1.1.0, "Parameters"; for the keys of CNI_ARGS: docs/configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address

from cni_calico.errors import InvalidEnvironment
from cni_calico.model import names

REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"),
    "GC": ("CNI_PATH",),
    "STATUS": ("CNI_PATH",),
    "VERSION": (),
}

# The variables of the caller's environment that a served call needs; the shim sends these, and parsers look at no
# others.
CALLER_VARIABLES = (
    "CNI_COMMAND",
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_ARGS",
    "CNI_PATH",
    "CNI_NETNS_OVERRIDE",
    "PATH",
    "HOSTNAME",
    "NODENAME",
    "FELIX_INTERFACEPREFIX",
    "DATASTORE_TYPE",
    "DATASTORE_PATH",
    "ETCD_ENDPOINTS",
    "ETCD_AUTHORITY",
    "ETCD_SCHEME",
    "ETCD_DISCOVERY_SRV",
    "ETCD_KEY_FILE",
    "ETCD_CERT_FILE",
    "ETCD_CA_CERT_FILE",
    "ETCD_USERNAME",
    "ETCD_PASSWORD",
    "KUBECONFIG",
    "K8S_API_ENDPOINT",
    "K8S_API_TOKEN",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "CALICO_RUN_DIR",
    "CALICO_STATE_DIR",
    "CALICO_DATASTORE_TYPE",
    "CALICO_DATASTORE_PATH",
    "CALICO_ETCD_ENDPOINTS",
    "CALICO_ETCD_DISCOVERY_SRV",
    "CALICO_ETCD_KEY_FILE",
    "CALICO_ETCD_CERT_FILE",
    "CALICO_ETCD_CA_CERT_FILE",
    "CALICO_ETCD_USERNAME",
    "CALICO_ETCD_PASSWORD",
    "CALICO_KUBECONFIG",
    "CALICO_API_GROUP",
)

MAX_ID = 253


@dataclass(frozen=True, slots=True)
class CniArgs:
    """The entries of CNI_ARGS that have a meaning here; unknown ones are ignored, as IgnoreUnknown asks."""

    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    ip: IPv4Address | IPv6Address | None = None
    test_namespace: str = ""

    @property
    def is_kubernetes(self) -> bool:
        return bool(self.pod_namespace and self.pod_name)


@dataclass(frozen=True, slots=True)
class Call:
    """One CNI call. ``netns`` is "" if a DEL came without one; ``path`` lists plugin directories."""

    command: str
    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: CniArgs = CniArgs()
    path: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""


def parse_args(text: str) -> CniArgs:
    """CNI_ARGS ("K=V;K=V"). Raises InvalidEnvironment."""
    values: dict[str, str] = {}
    for pair in filter(None, text.split(";")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidEnvironment(f"cannot parse CNI_ARGS: {pair!r} is not KEY=VALUE")
        values[key.strip()] = value.strip()
    if not values.get("K8S_POD_NAMESPACE") and not _is_name(values.get("K8S_POD_NAME", "")):
        values["K8S_POD_NAME"] = ""  # podman's name for a container: of no importance for its network
    for key in ("K8S_POD_NAMESPACE", "K8S_POD_NAME", "CNI_TEST_NAMESPACE"):
        if values.get(key) and not _is_name(values[key]):
            raise InvalidEnvironment(f"cannot parse CNI_ARGS: {key}={values[key]!r} is not a Kubernetes name")
    address = None
    if values.get("IP"):
        try:
            address = ip_address(values["IP"].partition("/")[0])
        except ValueError as e:
            raise InvalidEnvironment(f"cannot parse CNI_ARGS: IP={values['IP']!r} is not an IP address") from e
    return CniArgs(
        pod_namespace=values.get("K8S_POD_NAMESPACE", ""),
        pod_name=values.get("K8S_POD_NAME", ""),
        pod_uid=values.get("K8S_POD_UID", ""),
        ip=address,
        test_namespace=values.get("CNI_TEST_NAMESPACE", ""),
    )


def _is_name(text: str) -> bool:
    return len(text) <= MAX_ID and names.valid_identifier(text)


def parse_call(environ: Mapping[str, str], stdin: bytes) -> Call:
    """The call that an environment and stdin describe. Raises InvalidEnvironment."""
    command = environ.get("CNI_COMMAND", "")
    if not command:
        raise InvalidEnvironment(
            "cannot run: required env variables [CNI_COMMAND] missing",
            details="this is a CNI plugin: a container runtime calls it; try -v, or CNI_COMMAND=VERSION",
        )
    if command not in REQUIRED:
        raise InvalidEnvironment(
            f"unknown CNI_COMMAND: {command}", details="use ADD, DEL, CHECK, STATUS, GC or VERSION"
        )
    missing = [name for name in REQUIRED[command] if not environ.get(name)]
    if missing:
        raise InvalidEnvironment(f"required env variables [{','.join(missing)}] missing")
    container_id, ifname = environ.get("CNI_CONTAINERID", ""), environ.get("CNI_IFNAME", "")
    if command in ("ADD", "DEL", "CHECK"):
        if not names.valid_identifier(container_id) or len(container_id) > MAX_ID:
            raise InvalidEnvironment(
                f"invalid characters in containerID: {_shortened(container_id)}",
                details=f"CNI_CONTAINERID must match [a-zA-Z0-9][a-zA-Z0-9_.-]* and have at most {MAX_ID} characters",
            )
        if not names.valid_ifname(ifname):
            raise InvalidEnvironment(
                f"invalid interface name: CNI_IFNAME={_shortened(ifname)}",
                details="an interface name has 1 to 15 bytes, no '/', ':' or white space, and is not '.' or '..'",
            )
    return Call(
        command=command,
        container_id=container_id,
        netns=environ.get("CNI_NETNS", ""),
        ifname=ifname,
        args=parse_args(environ.get("CNI_ARGS", "")),
        path=tuple(filter(None, environ.get("CNI_PATH", "").split(":"))),
        environ={name: environ[name] for name in CALLER_VARIABLES if name in environ},
        stdin=stdin,
    )


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
