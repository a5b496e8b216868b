"""PURE: what is known of a flannel network, what stands against moving it, and the plan for it as text.

Rule: pods keep their ranges (each node's podCIDR), and both networks speak one VXLAN while nodes are moved one by one;
so only flannel's VXLAN over IPv4, with Kubernetes as its datastore, can be moved. Nothing is changed by us: the plan is
for a person, in steps that may be repeated and taken back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from typing import Any

from cni_calico.errors import InvalidConfig
from cni_calico.model.kubernetes.flannel import PREFIX, read_end

LABEL = "cni-calico.dev/pod-network"  # of a node: "flannel" or "calico"
_VTEP = "projectcalico.org/IPv4VXLANTunnelAddr"
_DEFAULT_VNI, _DEFAULT_PORT = 1, 8472


@dataclass(frozen=True, slots=True)
class FlannelNetwork:
    """``daemon``: namespace and name of its DaemonSet, "" if none was found. ``direct``: not through VXLAN inside a
    subnet; ``masquerades``: what goes out of it.
    """

    cidr: IPv4Network
    vni: int = _DEFAULT_VNI
    port: int = _DEFAULT_PORT
    direct: bool = False
    masquerades: bool = True
    daemon: str = ""

    @property
    def mode(self) -> str:
        return "CrossSubnet" if self.direct else "Always"


def parse_network(text: object, source: str) -> FlannelNetwork:
    """``text``: net-conf.json. Raises InvalidConfig, with everything that is wrong."""
    try:
        conf = json.loads(text if isinstance(text, str) else "")
    except (ValueError, RecursionError) as e:
        raise InvalidConfig(f"cannot read {source}: it is not JSON: {e}") from e
    if not isinstance(conf, dict):
        raise InvalidConfig(f"cannot read {source}: it is no JSON object")
    backend = conf.get("Backend")
    backend = backend if isinstance(backend, dict) else {}
    wrong = list[str]()
    if str(backend.get("Type", "udp")).lower() != "vxlan":
        wrong.append(f"Backend.Type is {backend.get('Type', 'udp')!r}: only vxlan can be moved node by node")
    if conf.get("EnableIPv6"):
        wrong.append("EnableIPv6 is true: only IPv4 can be moved node by node")
    if conf.get("EnableIPv4", True) is False:
        wrong.append("EnableIPv4 is false")
    cidr = IPv4Network("0.0.0.0/0")
    try:
        cidr = IPv4Network(conf.get("Network") or "")
    except ValueError:
        wrong.append(f"Network is {conf.get('Network')!r}, and not an IPv4 network without host bits")
    vni = _number(backend, "VNI", _DEFAULT_VNI, 1, (1 << 24) - 1, wrong)
    port = _number(backend, "Port", 0, 0, 65535, wrong) or _DEFAULT_PORT
    if wrong:
        raise InvalidConfig(f"{source} describes a network that cannot be moved", details="\n".join(wrong))
    return FlannelNetwork(cidr, vni, port, backend.get("DirectRouting") is True)


def _number(backend: Mapping[str, Any], name: str, default: int, least: int, most: int, wrong: list[str]) -> int:
    value = backend.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        wrong.append(f"Backend.{name} is {value!r}, and not a number from {least} to {most}")
        return default
    return value


def find_masquerading(daemon: Mapping[str, Any]) -> bool | None:
    """Whether a DaemonSet is flannel's, and masquerades; None: it is not flannel's."""
    spec = ((daemon.get("spec") or {}).get("template") or {}).get("spec") or {}
    for container in spec.get("containers") or ():
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        if any("flanneld" in str(word) for word in words) or "--kube-subnet-mgr" in words:
            return any(word in ("--ip-masq", "--ip-masq=true", "-ip-masq", "-ip-masq=true") for word in words)
    return None


# -- what stands against it -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MovedNode:
    """``state``: "flannel", "calico", or "" where ``why`` says what is wrong."""

    name: str
    state: str
    why: str = ""


def judge_node(node: Mapping[str, Any], network: FlannelNetwork) -> MovedNode:
    metadata, spec = node.get("metadata") or {}, node.get("spec") or {}
    name, annotations = str(metadata.get("name")), metadata.get("annotations") or {}
    cidr = spec.get("podCIDR")
    try:
        inside = IPv4Network(cidr).subnet_of(network.cidr)
    except (ValueError, TypeError, AttributeError):
        inside = False
    if not inside:
        return MovedNode(name, "", f"its podCIDR is {cidr}, which is not a part of {network.cidr}")
    if annotations.get(_VTEP):
        return MovedNode(name, "calico")
    end = read_end(annotations, cidr)
    if end is None:
        return MovedNode(name, "", f"it has no annotations {PREFIX}* of a VXLAN: has flanneld run there?")
    if end.vni != network.vni:
        return MovedNode(name, "", f"its flanneld uses VNI {end.vni}, and the network {network.vni}: restart it")
    return MovedNode(name, "flannel")


def find_obstacles(
    network: FlannelNetwork,
    nodes: Sequence[MovedNode],
    pools: Iterable[Mapping[str, Any]],
    felix: Mapping[str, Any],
) -> Iterator[str]:
    """``pools``, ``felix``: the specs that are there, the latter of FelixConfiguration default."""
    for one in nodes:
        if one.why:
            yield f"node {one.name}: {one.why}"
    if not nodes:
        yield "there are no nodes"
    for pool in pools:
        try:
            overlaps = ip_network(pool.get("cidr", "")).overlaps(network.cidr)
        except (ValueError, TypeError):
            continue
        if overlaps and (pool.get("cidr"), pool.get("vxlanMode")) != (str(network.cidr), network.mode):
            mode = pool.get("vxlanMode") or "Never"
            has = f"there is an IPPool {pool.get('cidr')} with vxlanMode {mode}"
            yield f"{has}; it has to be {network.cidr}, {network.mode}"
    for field, wanted, default in (("vxlanVNI", network.vni, 4096), ("vxlanPort", network.port, 4789)):
        if felix.get(field, wanted) != wanted or (felix and field not in felix and wanted != default):
            yield f"FelixConfiguration default has {field} {felix.get(field, default)}; it has to be {wanted}"


# -- the plan ---------------------------------------------------------------------------------------------------------


def render_check(network: FlannelNetwork, nodes: Sequence[MovedNode], obstacles: Sequence[str]) -> str:
    of = {state: sum(one.state == state for one in nodes) for state in ("flannel", "calico")}
    lines = [
        f"flannel's network {network.cidr}: VXLAN, VNI {network.vni}, port {network.port}, vxlanMode {network.mode}",
        f"nodes: {of['flannel']} with flannel, {of['calico']} moved, {len(nodes) - sum(of.values())} in neither state",
        *(f"- {text}" for text in obstacles),
    ]
    if not obstacles:
        lines.append("nothing stands against moving it: calicoctl migrate flannel --plan")
    return "\n".join(lines) + "\n"


def render_plan(network: FlannelNetwork, nodes: Sequence[MovedNode]) -> str:
    namespace, _, name = network.daemon.partition("/")
    selector = json.dumps({"spec": {"template": {"spec": {"nodeSelector": {LABEL: "flannel"}}}}})
    waiting = [one.name for one in nodes if one.state == "flannel"]
    masquerade = "true" if network.masquerades else "false"
    parts = [
        f"""\
# Moves flannel's network {network.cidr} to Calico, node by node. Pods keep their ranges; a pod gets a new address
# when its node is moved. Every step can be repeated: the same command prints what is left to do.

# 1. Records. Apply Calico's definitions first (crds.yaml); then: calicoctl apply -f - <<'END'
apiVersion: projectcalico.org/v3
kind: IPPool
metadata:
  name: flannel
spec:
  cidr: {network.cidr}
  vxlanMode: {network.mode}
  natOutgoing: {masquerade}
---
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata:
  name: default
spec:
  vxlanVNI: {network.vni}
  vxlanPort: {network.port}
# END

# 2. Who runs where: flannel stays on the nodes that have its label.
#    kubectl label node --all {LABEL}=flannel
#    kubectl -n {namespace} patch daemonset {name} --patch '{selector}'

# 3. Calico, for no node yet: in its manifest for Kubernetes (calico.yaml) set
#    - in DaemonSet calico-node: nodeSelector {LABEL}: calico; in the environment of calico-node
#      CALICO_NETWORKING_BACKEND=vxlan, USE_POD_CIDR=true, CALICO_IPV4POOL_CIDR=none, CALICO_IPV6POOL_CIDR=none
#    - in ConfigMap calico-config: "ipam": {{"type": "host-local", "subnet": "usePodCidr"}}
#    and apply it.
""",
        "# 4. One node after the other. The next one only when the pods of this one are reached.\n",
    ]
    parts += [_render_node(name) for name in waiting] or ["#    every node is moved\n"]
    parts.append(
        f"""
# 5. At the end, when `calicoctl migrate flannel --check` counts no node with flannel any more:
#    kubectl -n {namespace} delete daemonset {name}
#    take the nodeSelector out of calico-node, then the label: kubectl label node --all {LABEL}-
#    The annotations {PREFIX}* may stay; without them a node's VXLAN device gets another MAC address.

# Back, for a node that has been moved: cordon and drain it, kubectl label node NAME --overwrite {LABEL}=flannel,
# kubectl annotate node NAME {_VTEP}-, and on it: ip link delete vxlan.calico;
# rm /etc/cni/net.d/10-calico.conflist. flanneld then starts there, as before.
"""
    )
    return "".join(parts)


def _render_node(name: str) -> str:
    return f"""\
#    kubectl cordon {name}; kubectl drain {name} --ignore-daemonsets --delete-emptydir-data
#    kubectl label node {name} --overwrite {LABEL}=calico
#    on {name}: ip link delete flannel.1; ip link delete cni0; rm -f /etc/cni/net.d/10-flannel.conflist
#    kubectl delete pods -A --field-selector spec.nodeName={name}; kubectl uncordon {name}
"""
