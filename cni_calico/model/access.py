"""PURE: how to reach a datastore and a Kubernetes API, as values; their parsers decide from which sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cni_calico.directories import STATE_DIR
from cni_calico.errors import InvalidConfig

# what to do about a file of etcd's that cannot be read
CERTIFICATE_FILES = (
    "ETCD_CA_CERT_FILE, ETCD_CERT_FILE and ETCD_KEY_FILE, or the same settings in the configuration, must name files "
    "that can be read here"
)
CNI_ACCOUNT = "calico-cni-plugin"  # the service account whose token the CNI plugin has by default
LOCAL_PATH = f"{STATE_DIR}/datastore.db"
# the datastore's variables; upstream's client library reads these, and no others, also with the prefix CALICO_
PREFIXED = (
    *("DATASTORE_TYPE", "DATASTORE_PATH", "ETCD_ENDPOINTS", "ETCD_DISCOVERY_SRV", "ETCD_USERNAME", "ETCD_PASSWORD"),
    *("ETCD_KEY_FILE", "ETCD_CERT_FILE", "ETCD_CA_CERT_FILE", "KUBECONFIG", "K8S_API_ENDPOINT", "K8S_API_TOKEN"),
    *("K8S_KEY_FILE", "K8S_CERT_FILE", "K8S_CA_FILE", "K8S_CURRENT_CONTEXT"),
)
API_GROUP = "crd.projectcalico.org/v1"
NATIVE_GROUP = "projectcalico.org/v3"  # the resources as users write them, stored as they are
CRD_ROOT = f"/apis/{API_GROUP}"


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """A Kubernetes API server. Inline values win over ``kubeconfig``; if all are empty, the pod's service account is
    used. ``api_group`` is API_GROUP, NATIVE_GROUP, or "": the one that the cluster serves.
    """

    kubeconfig: str = ""
    context: str = ""  # of the kubeconfig; "": its current one
    api_root: str = ""
    token: str = field(default="", repr=False)
    client_certificate: str = ""
    client_key: str = ""
    certificate_authority: str = ""
    insecure: bool = False  # do not verify the server's certificate
    qps: float = 0.0
    burst: int = 0
    https_proxy: str = field(default="", repr=False)  # it may contain a password
    no_proxy: str = ""
    api_group: str = ""


def parse_api_group(text: str, where: str) -> str:
    """The group that a text names, "" if it is empty; ``where`` says where the text stands.

    Raises InvalidConfig for any other text, for which upstream takes API_GROUP.
    """
    wanted = text.strip().lower()
    if wanted in ("", API_GROUP, NATIVE_GROUP):
        return wanted
    raise InvalidConfig(
        f"cannot use {where}={text!r}: expected {API_GROUP} or {NATIVE_GROUP}",
        details="'kubectl get crd ippools.crd.projectcalico.org ippools.projectcalico.org' shows which of them this "
        "cluster has; without a value the cluster is asked",
    )


RELAY_PORT = 5473
ETCD_PORT = 2379


@dataclass(frozen=True, slots=True)
class RelayAccess:
    """``address`` ("host:port") wins over ``service``. Without ``common_name`` and ``uri`` the relay's certificate must
    be for the address's host or for the Service's name.
    """

    address: str = ""
    service: str = ""
    namespace: str = "kube-system"
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = field(default="", repr=False)
    common_name: str = ""
    uri: str = ""
    token_file: str = ""  # "": the token for the API server is shown to the relay


def parse_relay_address(text: str) -> tuple[str, int]:
    """Host and port of "host", "host:port" or "[host]:port". Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
    elif not colon or ":" in host:
        host, colon, port = text, "", ""
    plain = host.replace("-", "").replace(".", "").replace(":", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum()) or (
        colon and not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536)
    ):
        raise ValueError(f"expected host:port, not {text!r}")
    return host, int(port) if port else RELAY_PORT


@dataclass(frozen=True, slots=True)
class DatastoreConfig:
    """``type`` is "local", "etcdv3" or "kubernetes". Two equal configurations may share one connection."""

    type: str
    path: str = LOCAL_PATH
    etcd_endpoints: tuple[str, ...] = ()
    etcd_discovery_srv: str = ""
    etcd_key_file: str = ""
    etcd_cert_file: str = ""
    etcd_ca_cert_file: str = ""
    etcd_username: str = ""
    etcd_password: str = field(default="", repr=False)
    kubernetes: KubernetesAccess = KubernetesAccess()


def describe_config(config: DatastoreConfig | None) -> str:
    """The type, and what tells two of that type apart where it is no secret: "local PATH", "etcdv3 URL,URL"."""
    if config is None:
        return ""
    where = {"local": config.path, "etcdv3": ",".join(config.etcd_endpoints) or config.etcd_discovery_srv}
    return f"{config.type} {where.get(config.type, '')}".strip()


def is_same_datastore(one: DatastoreConfig, other: DatastoreConfig) -> bool:
    """Whether both mean the same datastore, even if they reach it differently: through another endpoint of the same
    etcd, with a renewed token, through a proxy. (A node belongs to only one Kubernetes cluster.)
    """
    if one.type != other.type:
        return False
    if one.type == "local":
        return one.path == other.path
    if one.type == "etcdv3":
        same_name = bool(one.etcd_discovery_srv) and one.etcd_discovery_srv == other.etcd_discovery_srv
        return same_name or bool(_authorities(one) & _authorities(other))
    return True


def _authorities(config: DatastoreConfig) -> set[str]:
    """Host and port of each etcd endpoint, in normalised spelling."""
    return {_authority(endpoint) for endpoint in config.etcd_endpoints}


def _authority(endpoint: str) -> str:
    """The scheme may be missing, and the port where it is etcd's usual one."""
    text = endpoint.strip().lower()
    text = (text.partition("://")[2] or text).partition("/")[0].rpartition("@")[2]
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    has_port = not text.endswith("]") and ":" in text
    return text if has_port else f"{text}:{ETCD_PORT}"


def without_prefixes(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment in which each X has the value of CALICO_X, unless that is empty."""
    prefixed = {name: environ.get(f"CALICO_{name}", "") for name in PREFIXED}
    given = {name: text for name, text in prefixed.items() if text}
    return {**environ, **given} if given else environ


def parse_proxy_variables(environ: Mapping[str, str]) -> tuple[str, str]:
    """The ``https_proxy`` and ``no_proxy`` of a KubernetesAccess; if a variable is set in both spellings, upper case
    wins.
    """
    https = environ.get("HTTPS_PROXY") or environ.get("https_proxy") or ""
    return https, environ.get("NO_PROXY") or environ.get("no_proxy") or ""
