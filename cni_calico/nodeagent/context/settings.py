"""PURE: every environment variable of calico-node, typed and validated; docs/node-environment.md is made from this
table.

Rule: an invalid value is an error that names the variable, the value and what was expected; all such errors are
reported at once. An empty variable counts as not set. Start-up stops at such an error; what runs on a node that was set
up before continues without the variable. FELIX_ variables have their own table (felix.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cni_calico.daemon.settings_table import (
    AS_NUMBER,
    DURATION,
    FLAG,
    NAMES,
    NETWORKS,
    ROUTER_ID,
    TEXT,
    Kind,
    choice,
    number,
    parse_each,
    pool_cidr,
    setting,
    settings_table,
)
from cni_calico.directories import BIRD_CONFIG_DIR, LOG_DIR, NODENAME_FILE, RUN_DIR, SHUTDOWN_FILE, STATE_DIR
from cni_calico.errors import InvalidConfig
from cni_calico.log import FORMAT_VARIABLE, FORMATS
from cni_calico.model.access import API_GROUP, CNI_ACCOUNT, LOCAL_PATH, NATIVE_GROUP, DatastoreConfig
from cni_calico.model.resources import Network
from cni_calico.model.selectors import parse_selector
from cni_calico.nodeagent.context.address_setting import (
    AddressSetting,
    Method,
    parse_address_setting,
    parse_method,
)

_MODE = {"off": "Never", "cross-subnet": "CrossSubnet"}


def _parse_selector_text(text: str) -> str:
    try:
        parse_selector(text)
    except InvalidConfig as e:
        raise ValueError(f"expected a selector: {e}") from e
    return text


def _parse_backend(text: str) -> str:
    if text.lower() == "gobgp":
        raise ValueError("gobgp is not supported any more (nor by upstream): use bird")
    if text.lower() not in ("bird", "vxlan", "none"):
        raise ValueError("expected one of bird, vxlan, none")
    return text.lower()


_BACKEND = Kind(_parse_backend, "bird, vxlan, none")
_SELECTOR = Kind(_parse_selector_text, "selector")
_STARTER = choice("auto", "external", "own")
_METHOD = Kind(
    parse_method,
    "first-found, kubernetes-internal-ip, can-reach=HOST, interface=REGEX,..., skip-interface=REGEX,... or "
    "cidr=CIDR,...",
)
_IP = Kind(lambda text: parse_address_setting(4, text), "IPv4 address with or without prefix, autodetect or none")
_IP6 = Kind(lambda text: parse_address_setting(6, text), "IPv6 address with or without prefix, autodetect or none")
_LEVEL = choice(
    "debug", "info", "warning", "error", "none", spellings={"warn": "warning", "critical": "error", "fatal": "error"}
)


@settings_table
class NodeSettings:
    """The environment of calico-node, parsed."""

    # -- the node
    nodename: str = setting("NODENAME", TEXT, "", "Name of this node; wins over every other source.", section="Node")
    nodename_file: str = setting(
        "CALICO_NODENAME_FILE",
        TEXT,
        NODENAME_FILE,
        "File that holds the node's name: read when NODENAME is empty, written when start-up has succeeded.",
    )
    shutdown_file: str = setting(
        "CALICO_SHUTDOWN_TIMESTAMP_FILE",
        TEXT,
        "",
        "File into which -shutdown writes the time; start-up removes it once it has succeeded.",
        shown_default=f"{STATE_DIR}/{SHUTDOWN_FILE}",
    )
    hostname: str = setting(
        "HOSTNAME", TEXT, "", "Name used, in lower case, if no other is set; default: the system's host name."
    )
    ip: AddressSetting = setting(
        "IP",
        _IP,
        AddressSetting(),
        "IPv4 address of this node. Empty: what is stored is kept, and detected when nothing is stored.",
        shown_default="",
    )
    ip6: AddressSetting = setting(
        "IP6", _IP6, AddressSetting(), "IPv6 address of this node. Empty: what is stored is kept.", shown_default=""
    )
    ip_method: Method = setting(
        "IP_AUTODETECTION_METHOD", _METHOD, parse_method(""), "How IPv4 is detected.", shown_default="first-found"
    )
    ip6_method: Method = setting(
        "IP6_AUTODETECTION_METHOD", _METHOD, parse_method(""), "How IPv6 is detected.", shown_default="first-found"
    )
    autodetect_poll_s: float = setting(
        "AUTODETECT_POLL_INTERVAL", DURATION, 60.0, "How often an autodetected address is looked up again."
    )
    disable_ip_check: bool = setting(
        "DISABLE_NODE_IP_CHECK", FLAG, False, "Accept an address that another Node record has."
    )
    as_number: int | None = setting(
        "AS", AS_NUMBER, None, "AS number of this node; empty keeps what is stored, or the cluster's."
    )
    router_id: str = setting(
        "CALICO_ROUTER_ID",
        ROUTER_ID,
        "",
        "BGP router ID, for nodes without IPv4; hash derives it from the node's name.",
    )
    advertise_cluster_ips: tuple[Network, ...] = setting(
        "CALICO_ADVERTISE_CLUSTER_IPS",
        NETWORKS,
        (),
        "Ranges of cluster IPs to announce by BGP; wins over the BGPConfiguration's serviceClusterIPs.",
    )
    k8s_node_ref: str = setting(
        "CALICO_K8S_NODE_REF", TEXT, "", "Name of the Kubernetes node, recorded in the Node's orchRefs."
    )
    namespace: str = setting(
        "NAMESPACE", TEXT, "", "Namespace of the Secrets with BGP passwords; empty: the pod's own, else kube-system."
    )
    cluster_type: tuple[str, ...] = setting(
        "CLUSTER_TYPE", NAMES, (), "Words merged into ClusterInformation's clusterType, such as k8s,bgp."
    )
    backend: str = setting(
        "CALICO_NETWORKING_BACKEND",
        _BACKEND,
        "bird",
        "bird: BGP and tunnels; vxlan: VXLAN only; none: no networking between nodes.",
    )
    bird_service: str = setting("CALICO_BIRD_SERVICE", _STARTER, "auto", "Who starts BIRD: see bgp.md.")
    services_dir: str = setting("SVDIR", TEXT, "/etc/service/enabled", "Where a service bird of runit's is looked for.")
    networking: str = setting(
        "CALICO_NETWORKING",
        TEXT,
        "",
        "Older form of CALICO_NETWORKING_BACKEND, which it overrides: false means none, anything else bird.",
    )
    disable_felix: bool = setting(
        "CALICO_DISABLE_FELIX", FLAG, False, "Run no data plane part here (another agent does)."
    )
    libnetwork: bool = setting(
        "CALICO_LIBNETWORK_ENABLED", FLAG, False, "Run Docker's drivers, too (docs/docker.md); the service is better."
    )
    wait_for_datastore: bool = setting(
        "WAIT_FOR_DATASTORE", FLAG, False, "Wait until the datastore answers instead of failing."
    )
    janitor: bool = setting(
        "CALICO_JANITOR",
        FLAG,
        True,
        "Take part in the election of the janitor, which releases what deleted nodes and pods have left behind.",
    )

    # -- default pools
    no_default_pools: bool = setting(
        "NO_DEFAULT_POOLS",
        FLAG,
        False,
        "Create no default pools; cannot be combined with a pool CIDR.",
        section="Default pools",
    )
    v4_cidr: Network | str | None = setting(
        "CALICO_IPV4POOL_CIDR",
        pool_cidr(4),
        None,
        'IPv4 pool to create if there is no IPv4 pool; "none": create none.',
        shown_default="kubeadm's podSubnet, else the first of 192.168.0.0/16, 172.16.0.0/16 ... 172.31.0.0/16 that "
        "holds no address of the host",
    )
    v4_block_size: int = setting("CALICO_IPV4POOL_BLOCK_SIZE", number(20, 32), 26, "Block size of the IPv4 pool.")
    v4_ipip: str = setting(
        "CALICO_IPV4POOL_IPIP",
        choice("Always", "CrossSubnet", "Never", spellings=_MODE),
        "Never",
        "IPIP mode of the IPv4 pool.",
    )
    v4_vxlan: str = setting(
        "CALICO_IPV4POOL_VXLAN",
        choice("Always", "CrossSubnet", "Never", spellings=_MODE),
        "Never",
        "VXLAN mode of the IPv4 pool.",
    )
    v4_nat: bool = setting("CALICO_IPV4POOL_NAT_OUTGOING", FLAG, True, "natOutgoing of the IPv4 pool.")
    v4_no_export: bool = setting(
        "CALICO_IPV4POOL_DISABLE_BGP_EXPORT", FLAG, False, "disableBGPExport of the IPv4 pool."
    )
    v4_selector: str = setting("CALICO_IPV4POOL_NODE_SELECTOR", _SELECTOR, "all()", "nodeSelector of the IPv4 pool.")
    v6_cidr: Network | str | None = setting(
        "CALICO_IPV6POOL_CIDR",
        pool_cidr(6),
        None,
        'IPv6 pool to create if there is no IPv6 pool; "none": create none.',
        shown_default="kubeadm's podSubnet, else a random unique local /48",
    )
    v6_block_size: int = setting("CALICO_IPV6POOL_BLOCK_SIZE", number(116, 128), 122, "Block size of the IPv6 pool.")
    v6_ipip: str = setting(
        "CALICO_IPV6POOL_IPIP",
        choice("Never", spellings=_MODE | {"crosssubnet": "CrossSubnet", "always": "Always"}),
        "Never",
        "There is no IPIP for IPv6; any other value is refused.",
    )
    v6_vxlan: str = setting(
        "CALICO_IPV6POOL_VXLAN",
        choice("Always", "CrossSubnet", "Never", spellings=_MODE),
        "Never",
        "VXLAN mode of the IPv6 pool.",
    )
    v6_nat: bool = setting("CALICO_IPV6POOL_NAT_OUTGOING", FLAG, False, "natOutgoing of the IPv6 pool.")
    v6_no_export: bool = setting(
        "CALICO_IPV6POOL_DISABLE_BGP_EXPORT", FLAG, False, "disableBGPExport of the IPv6 pool."
    )
    v6_selector: str = setting("CALICO_IPV6POOL_NODE_SELECTOR", _SELECTOR, "all()", "nodeSelector of the IPv6 pool.")

    # -- the CNI plugin
    use_pod_cidr: bool = setting(
        "USE_POD_CIDR",
        FLAG,
        False,
        "Pods get addresses from the Kubernetes node's podCIDR (host-local IPAM).",
        section="CNI plugin",
    )
    manage_cni: bool = setting("CALICO_MANAGE_CNI", FLAG, True, "Renew the token in the CNI plugin's kubeconfig.")
    cni_service_account: str = setting(
        "CALICO_CNI_SERVICE_ACCOUNT", TEXT, CNI_ACCOUNT, "Service account of the CNI plugin's token."
    )

    cni_kubeconfig: str = setting(
        "CALICO_CNI_KUBECONFIG",
        TEXT,
        "/host/etc/cni/net.d/calico-kubeconfig",
        "The CNI plugin's kubeconfig as this process sees it.",
    )
    node_user_id: int = setting(
        "NODE_USER_ID", number(0, 65535), 0, "Owner that -hostpath-init gives the directories.", shown_default="root"
    )

    # -- logs and directories
    startup_log_level: str = setting(
        "CALICO_STARTUP_LOGLEVEL", _LEVEL, "info", "Log level of start-up.", section="Logs and directories"
    )
    cni_server_log_level: str = setting("CALICO_CNI_SERVER_LOG_LEVEL", _LEVEL, "info", "Log level of the CNI server.")
    log_format: str = setting(FORMAT_VARIABLE, choice(*FORMATS), "text", "Log records as text, or as JSON objects.")
    disable_file_logging: bool = setting("CALICO_DISABLE_FILE_LOGGING", FLAG, False, "Log to stderr only.")
    log_dir: str = setting("CALICO_LOG_DIR", TEXT, LOG_DIR, "Directory of log files.")
    run_dir: str = setting("CALICO_RUN_DIR", TEXT, RUN_DIR, "Directory of sockets, locks and status files.")
    bird_config_dir: str = setting(
        "CALICO_BIRD_CONFIG_DIR", TEXT, BIRD_CONFIG_DIR, "Directory of BIRD's configuration."
    )
    state_dir: str = setting("CALICO_STATE_DIR", TEXT, STATE_DIR, "Directory of files that survive a reboot.")


# Whether there is BGP, and where tunnel addresses come from: these are never guessed.
_DECISIVE = frozenset(("CALICO_NETWORKING_BACKEND", "USE_POD_CIDR"))

# Read by the parts that open connections (cni/netconf.py, with_kubernetes_access); listed here for the reference page.
DATASTORE_VARIABLES: tuple[tuple[str, str, str, str], ...] = (
    (
        "DATASTORE_TYPE",
        "local, etcdv3, kubernetes",
        "etcdv3 when endpoints are given, else kubernetes",
        "The datastore.",
    ),
    ("DATASTORE_PATH", "path", LOCAL_PATH, "File of the local datastore."),
    ("ETCD_ENDPOINTS", "URLs separated by commas", "", "etcd's endpoints."),
    ("ETCD_DISCOVERY_SRV", "domain", "", "Domain whose SRV records name etcd's endpoints."),
    ("ETCD_AUTHORITY", "HOST:PORT", "", "One endpoint, together with ETCD_SCHEME."),
    ("ETCD_SCHEME", "http, https", "http", "Scheme of ETCD_AUTHORITY."),
    ("ETCD_KEY_FILE", "path", "", "Private key of the client certificate."),
    ("ETCD_CERT_FILE", "path", "", "Client certificate."),
    ("ETCD_CA_CERT_FILE", "path", "", "Certificates of the authorities to trust."),
    ("ETCD_USERNAME", "text", "", "etcd user."),
    ("ETCD_PASSWORD", "text", "", "Password of ETCD_USERNAME."),
    ("KUBECONFIG", "path", "", "kubeconfig file; without one the pod's service account is used."),
    ("K8S_API_ENDPOINT", "URL", "", "Kubernetes API server."),
    ("K8S_CERT_FILE", "path", "", "Client certificate for the API server."),
    ("K8S_KEY_FILE", "path", "", "Private key of K8S_CERT_FILE."),
    ("K8S_CA_FILE", "path", "", "Certificate authority of the API server."),
    ("HTTPS_PROXY", "URL", "", "HTTP proxy for the API server; `https_proxy` too."),
    ("NO_PROXY", "hosts", "", "Hosts that are reached without HTTPS_PROXY (docs/configuration.md); `no_proxy` too."),
    (
        "KUBERNETES_SERVICE_HOST",
        "text",
        "",
        "API server as given to pods, with `KUBERNETES_SERVICE_PORT`.",
    ),
    ("K8S_API_TOKEN", "text", "", "Bearer token for the API server; K8S_TOKEN is read too."),
    ("K8S_CURRENT_CONTEXT", "text", "the kubeconfig's own", "Context of the kubeconfig."),
    ("CALICO_API_GROUP", "group", "the one that the cluster serves", f"{API_GROUP} or {NATIVE_GROUP}."),
)

# Known to upstream; set here they have no effect, and the log says so.
# upstream's confd has them with prefixes of its own
_RELAY = (
    *("ADDR", "K8SSERVICENAME", "K8SNAMESPACE", "READTIMEOUT", "WRITETIMEOUT"),
    *("KEYFILE", "CERTFILE", "CAFILE", "CN", "URISAN"),
)
WITHOUT_EFFECT: Mapping[str, str] = {
    "CALICO_EARLY_NETWORKING": "dual top-of-rack set-ups are not supported",
    "BGP_LOGSEVERITYSCREEN": "set logSeverityScreen in the BGPConfiguration instead",
    **{
        f"{prefix}_TYPHA{name}": "BGP shares the agent's connection, which FELIX_TYPHA variables describe"
        for prefix in ("CONFD", "CALICO")
        for name in _RELAY
    },
}


def parse_settings(environ: Mapping[str, str]) -> NodeSettings:
    """The settings for start-up. Raises InvalidConfig naming every variable that is wrong."""
    values, wrong = parse_each(NodeSettings, environ)
    settings = NodeSettings(**values)
    problems = [*wrong.values(), *_contradictions(settings)]
    if problems:
        raise _refusal(problems)
    return settings


def parse_running_settings(environ: Mapping[str, str]) -> tuple[NodeSettings, tuple[str, ...]]:
    """The settings for the services of a node that was set up before, and what is wrong with them.

    A wrong variable counts as not set, which mostly means that the stored value stays. Raises InvalidConfig for the few
    where a wrong guess would change what other nodes rely on.
    """
    values, wrong = parse_each(NodeSettings, environ)
    settings = NodeSettings(**values)
    decisive = [text for name, text in wrong.items() if name in _DECISIVE]
    if decisive:
        raise _refusal(decisive)
    return settings, (*wrong.values(), *_contradictions(settings))


def _refusal(problems: Sequence[str]) -> InvalidConfig:
    return InvalidConfig(
        "cannot use the environment of calico-node: " + "; ".join(problems),
        details="docs/node-environment.md lists every variable with what it accepts",
    )


def _contradictions(settings: NodeSettings) -> list[str]:
    found = []
    if settings.no_default_pools and (settings.v4_cidr is not None or settings.v6_cidr is not None):
        found.append("NO_DEFAULT_POOLS=true cannot be combined with CALICO_IPV4POOL_CIDR or CALICO_IPV6POOL_CIDR")
    if settings.v4_ipip != "Never" and settings.v4_vxlan != "Never":
        found.append("CALICO_IPV4POOL_IPIP and CALICO_IPV4POOL_VXLAN cannot both be other than Never")
    if settings.v6_ipip != "Never":
        found.append("CALICO_IPV6POOL_IPIP: there is no IPIP for IPv6")
    for name, cidr, size in (
        ("CALICO_IPV4POOL_CIDR", settings.v4_cidr, settings.v4_block_size),
        ("CALICO_IPV6POOL_CIDR", settings.v6_cidr, settings.v6_block_size),
    ):
        if cidr is not None and not isinstance(cidr, str) and cidr.prefixlen > size:
            found.append(f"{name}={cidr} is smaller than one block (/{size})")
    return found


def without_effect(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that is set and has no effect."""
    return [
        f"{name} is set and has no effect: {why}"
        for name, why in WITHOUT_EFFECT.items()
        if environ.get(name, "").strip()
    ]


def with_kubernetes_access(config: DatastoreConfig, environ: Mapping[str, str]) -> DatastoreConfig:
    """The configuration with what the K8S_ variables add to it."""
    access = config.kubernetes
    return replace(
        config,
        kubernetes=replace(
            access,
            context=access.context or environ.get("K8S_CURRENT_CONTEXT", ""),
            api_root=access.api_root or environ.get("K8S_API_ENDPOINT", ""),
            token=access.token or environ.get("K8S_API_TOKEN", "") or environ.get("K8S_TOKEN", ""),
            client_certificate=access.client_certificate or environ.get("K8S_CERT_FILE", ""),
            client_key=access.client_key or environ.get("K8S_KEY_FILE", ""),
            certificate_authority=access.certificate_authority or environ.get("K8S_CA_FILE", ""),
        ),
    )
