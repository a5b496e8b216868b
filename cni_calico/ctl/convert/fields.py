"""PURE: the fields of an operator's Installation (``operator.tigera.io/v1``), and what becomes of each here.

Rule: every field of the operator (v1.42, and those that its next versions add) is in one row: it becomes values of the
chart, it is stored in the cluster already, it has no effect here, or it is refused unless it says what holds anyway.
docs/from-operator.md has the rows as its table (build/operator_page.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from cni_calico.directories import RUN_DIR, STATE_DIR

USED, STORED, WITHOUT, REFUSED = "values", "stored already", "no effect", "refused"


@dataclass(frozen=True, slots=True)
class InstallationField:
    """``path`` covers everything below it. ``text``: which values, why there is no effect, or what to do. A refused
    field passes with one of the values ``unless``.
    """

    path: str
    becomes: str
    text: str
    unless: tuple[str, ...] = ()


def _used(path: str, text: str) -> InstallationField:
    return InstallationField(path, USED, text)


def _stored(path: str, text: str) -> InstallationField:
    return InstallationField(path, STORED, text)


def _without(path: str, text: str) -> InstallationField:
    return InstallationField(path, WITHOUT, text)


def _refused(path: str, text: str, *unless: str) -> InstallationField:
    return InstallationField(path, REFUSED, text, unless)


_NET = "calicoNetwork"
_WINDOWS = "there is no support for Windows: leave the field out, and keep upstream's for such nodes"
_BPF = "there is no BPF data plane: leave the field out, and give kube-proxy its nodes back"
_HTTP = "the chart has no CSI driver: install upstream's where programs check HTTP (docs/http-policy.md)"

FIELDS = (
    _refused("variant", "only Calico itself can be replaced", "Calico"),
    _without("registry", "these images have other names: `node.registry`, `cni.registry`, ... name yours"),
    _without("imagePath", "as `registry`"),
    _without("imagePrefix", "as `registry`"),
    _used("imagePullSecrets", "`imagePullSecrets`"),
    _used("imagePullPolicy", "`imagePullPolicy`"),
    _used("kubernetesProvider", "`installation.kubernetesProvider`; DockerEnterprise and TKG are refused"),
    _used("cni.type", "`installation.cni.type`; GKE is refused: it cannot be replaced"),
    _used("cni.ipam.type", "`installation.cni.ipam.type`; AmazonVPC and AzureVNET come with `cni.type`"),
    _used("cni.binDir", "`installation.cni.binDir`"),
    _used("cni.confDir", "`installation.cni.confDir`"),
    _used("cni.specVersion", "`installation.cni.specVersion`"),
    _used("cni.installMode", "`installation.cni.installMode`"),
    _refused(f"{_NET}.linuxDataplane", _BPF, "Iptables", "Nftables"),
    _refused(f"{_NET}.windowsDataplane", _WINDOWS, "Disabled"),
    _refused(f"{_NET}.bpfNetworkBootstrap", _BPF, "Disabled"),
    _refused(f"{_NET}.kubeProxyManagement", _BPF, "Disabled"),
    _used(f"{_NET}.bgp", "`installation.calicoNetwork.bgp`; `network: none` for host-local addresses without BGP"),
    _stored(f"{_NET}.clusterRoutingMode", "`programClusterRoutes` of FelixConfiguration and BGPConfiguration"),
    _used(
        f"{_NET}.ipPools",
        "`installation.calicoNetwork.ipPools`: the first of each family, for the tunnels and for a new cluster. All "
        "are stored as IPPools already, with their other fields",
    ),
    _used(f"{_NET}.mtu", "`installation.calicoNetwork.mtu`: of pods, IPIP's, VXLAN's and WireGuard's interfaces"),
    _used(f"{_NET}.nodeAddressAutodetectionV4", "`installation.calicoNetwork.nodeAddressAutodetectionV4`"),
    _used(f"{_NET}.nodeAddressAutodetectionV6", "`IP6_AUTODETECTION_METHOD` in `node.env`"),
    _used(f"{_NET}.hostPorts", "`installation.calicoNetwork.hostPorts`"),
    _refused(f"{_NET}.multiInterfaceMode", "Multus itself may call this plugin: leave the field out", "None"),
    _used(f"{_NET}.containerIPForwarding", "`installation.calicoNetwork.containerIPForwarding`"),
    _refused(f"{_NET}.linuxPodInterfaceType", "pods get a veth: leave the field out", "Veth"),
    _used(f"{_NET}.sysctl", "`installation.calicoNetwork.sysctl`"),
    _used(f"{_NET}.linuxPolicySetupTimeoutSeconds", "`installation.calicoNetwork.linuxPolicySetupTimeoutSeconds`"),
    _used("logging.cni", "`installation.logging.cni`"),
    _used("nodeMetricsPort", "`FELIX_PROMETHEUSMETRICSENABLED` and `FELIX_PROMETHEUSMETRICSPORT` in `node.env`"),
    _without("typhaMetricsPort", "relays are off unless `typha.enabled`; then it is `TYPHA_PROMETHEUSMETRICSPORT`"),
    _used("controlPlaneNodeSelector", "`kubeControllers.nodeSelector` and `typha.nodeSelector`"),
    _used("controlPlaneTolerations", "`kubeControllers.tolerations`; relays tolerate everything"),
    _without("controlPlaneReplicas", "one calico-kube-controllers works at a time; relays have `typha.replicas`"),
    _used("calicoNodeDaemonSet", "`node`: labels, annotations, resources, nodeSelector, tolerations, affinity"),
    _used("calicoKubeControllersDeployment", "`kubeControllers`: the same"),
    _used("typhaDeployment", "`typha`: the same, in force with `typha.enabled`"),
    _without("csiNodeDriverDaemonSet", _HTTP),
    _refused("calicoNodeWindowsDaemonSet", _WINDOWS),
    _refused("calicoWindowsUpgradeDaemonSet", _WINDOWS),
    _refused("windowsNodes", _WINDOWS),
    _used("componentResources", "`node.resources`, `kubeControllers.resources`, `typha.resources`"),
    _used("typhaAffinity", "`typha.affinity`"),
    _without("typhaPodDisruptionBudget", "relays have one: at most one of them is away"),
    _used("nodeUpdateStrategy", "`node.updateStrategy`"),
    _without("flexVolumePath", _HTTP),
    _without("kubeletVolumePluginPath", _HTTP),
    _refused("calicoRunHostPath", "the agent's files are there: leave the field out", RUN_DIR),
    _refused("calicoLibHostPath", "the agent's files are there: leave the field out", STATE_DIR),
    _refused(
        "certificateManagement",
        "certificates are not requested from the cluster: leave the field out; the relays' are "
        "made by manifests/calico-typha-certificates.sh",
    ),
    _without("tlsCipherSuites", "TLS has the library's suites"),
    _without("serviceCIDRs", "only for Windows"),
    _without("azure", "labels the operator's own namespaces"),
    _used("proxy", "`HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` in `node.env` and `kubeControllers.env`"),
    _without("networkPolicy", "policies for the operator's own namespaces"),
    _refused("fipsMode", "there is no such mode: leave the field out", "Disabled"),
    _refused("nonPrivileged", "the agent needs its privileges: leave the field out", "Disabled"),
)
BY_PATH = {field.path: field for field in FIELDS}
