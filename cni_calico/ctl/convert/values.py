"""PURE: fields of an Installation as values of the chart.

Rule: a function for each field that is used: the field's value and its path in, a part of the chart's values out. What
cannot be said with values is an error that names the field. Where the operator adds to its defaults, so do these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.model.documents.fields import (
    JSON,
    Wrong,
    parse_int,
    parse_list,
    parse_object,
    parse_objects,
    parse_text,
)
from cni_calico.model.quantities import parse_quantity

Values = dict[str, Any]

PROVIDERS = ("", "EKS", "GKE", "AKS", "OpenShift", "RKE2", "Kind")
_LINUX = {"kubernetes.io/os": "linux"}
# of calico-kube-controllers, whatever the operator is told besides
_CONTROL_PLANE = (
    {"key": "CriticalAddonsOnly", "operator": "Exists"},
    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
    {"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"},
)
_DETECTIONS = ("firstFound", "kubernetes", "interface", "skipInterface", "canReach", "cidrs")
_POOL_FIELDS = ("cidr", "blockSize", "encapsulation", "natOutgoing", "nodeSelector")
_ALL_POOL_FIELDS = (*_POOL_FIELDS, "name", "disableBGPExport", "disableNewAllocations", "allowedUses", "assignmentMode")
_COMPONENTS = {"Node": "node", "Typha": "typha", "KubeControllers": "kubeControllers"}
_MIB = 1 << 20


def nested(path: str, value: Any) -> Values:
    """``{"a": {"b": value}}`` for "a.b"."""
    for name in reversed(path.split(".")):
        value = {name: value}
    found: Values = value
    return found


def merged(one: JSON, other: JSON) -> Values:
    """Both; lists follow one another, and what both say is ``other``'s."""
    out = dict(one)
    for name, value in other.items():
        mine = out.get(name)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            out[name] = merged(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            out[name] = [*mine, *value]
        else:
            out[name] = value
    return out


def _copied(path: str, *allowed: str) -> Callable[[Any, str], Values]:
    def copy(value: Any, at: str) -> Values:
        if allowed and value not in allowed:
            raise Wrong(at, " or ".join(each or '""' for each in allowed), value)
        return nested(path, value)

    return copy


def _same(field: str, *allowed: str) -> tuple[str, Callable[[Any, str], Values]]:
    """A field that has the same name in the chart."""
    return field, _copied(f"installation.{field}", *allowed)


def _variables(part: str, **variables: str) -> Values:
    return {part: {"env": [{"name": name, "value": value} for name, value in variables.items()]}}


def _pools(value: Any, at: str) -> Values:
    pools = parse_objects(value, at)
    if not pools:
        return _variables("node", NO_DEFAULT_POOLS="true")
    first: dict[bool, Values] = {}
    for i, pool in enumerate(pools):
        cidr = parse_text(pool.get("cidr"), f"{at}[{i}].cidr")
        if unknown := sorted(set(pool) - set(_ALL_POOL_FIELDS)):
            raise Wrong(f"{at}[{i}].{unknown[0]}", "a field of a pool", pool[unknown[0]])
        encapsulation = pool.get("encapsulation", "None")
        allowed = ("VXLAN", "VXLANCrossSubnet", "None", *(() if ":" in cidr else ("IPIP", "IPIPCrossSubnet")))
        if encapsulation not in allowed:
            raise Wrong(f"{at}[{i}].encapsulation", " or ".join(allowed), encapsulation)
        first.setdefault(":" in cidr, {name: pool[name] for name in _POOL_FIELDS if name in pool})
    return nested("installation.calicoNetwork.ipPools", list(first.values()))


def _ipam(value: Any, at: str) -> Values:
    if value in ("AmazonVPC", "AzureVNET"):
        return {}
    return _copied("installation.cni.ipam.type", "Calico", "HostLocal")(value, at)


def _detection(value: Any, at: str) -> tuple[str, Any]:
    """The method, and its value."""
    given = parse_object(value, at)
    found = [name for name in _DETECTIONS if given.get(name)]
    if len(found) != 1 or len(given) != 1:
        raise Wrong(at, f"one of {', '.join(_DETECTIONS)}", value)
    return found[0], given[found[0]]


def _detection4(value: Any, at: str) -> Values:
    name, said = _detection(value, at)
    return nested("installation.calicoNetwork.nodeAddressAutodetectionV4", {name: said})


def _detection6(value: Any, at: str) -> Values:
    name, said = _detection(value, at)
    methods = {
        "firstFound": "first-found",
        "kubernetes": "kubernetes-internal-ip",
        "interface": f"interface={said}",
        "skipInterface": f"skip-interface={said}",
        "canReach": f"can-reach={said}",
        "cidrs": f"cidr={','.join(map(str, parse_list(said, at)))}" if name == "cidrs" else "",
    }
    return _variables("node", IP6_AUTODETECTION_METHOD=methods[name])


def _logging(value: Any, at: str) -> Values:
    out = dict(parse_object(value, at))
    size = out.get("logFileMaxSize")
    if size is not None:
        try:
            out["logFileMaxSize"] = f"{max(1, parse_quantity(str(size)) // _MIB)}Mi"
        except ValueError as e:
            raise Wrong(f"{at}.logFileMaxSize", "a size, such as 100Mi", size) from e
    return nested("installation.logging.cni", out)


def _metrics(value: Any, at: str) -> Values:
    port = parse_int(value, at)
    return _variables("node", FELIX_PROMETHEUSMETRICSENABLED="true", FELIX_PROMETHEUSMETRICSPORT=str(port))


def _proxy(value: Any, at: str) -> Values:
    given = parse_object(value, at)
    names = {"httpProxy": "HTTP_PROXY", "httpsProxy": "HTTPS_PROXY", "noProxy": "NO_PROXY"}
    if unknown := sorted(set(given) - set(names)):
        raise Wrong(f"{at}.{unknown[0]}", " or ".join(names), given[unknown[0]])
    variables = {names[name]: parse_text(text, f"{at}.{name}") for name, text in given.items()}
    return {**_variables("node", **variables), **_variables("kubeControllers", **variables)}


def _component_resources(value: Any, at: str) -> Values:
    out: Values = {}
    for i, each in enumerate(parse_objects(value, at)):
        name = each.get("componentName")
        if name not in _COMPONENTS:
            raise Wrong(f"{at}[{i}].componentName", " or ".join(_COMPONENTS), name)
        out = merged(out, {_COMPONENTS[name]: {"resources": each.get("resourceRequirements") or {}}})
    return out


def _node_selector(value: Any, at: str) -> Values:
    selector = {**_LINUX, **parse_object(value, at)}
    return {"kubeControllers": {"nodeSelector": selector}, "typha": {"nodeSelector": selector}}


def _tolerations(value: Any, at: str) -> Values:
    return {"kubeControllers": {"tolerations": [*map(dict, _CONTROL_PLANE), *parse_objects(value, at)]}}


def _pods(part: str, containers: Mapping[str, str]) -> Callable[[Any, str], Values]:
    """The fields of a DaemonSet or Deployment that the operator lets users override; ``containers``: name -> the part
    of the values that has its resources.
    """

    def override(value: Any, at: str) -> Values:
        out: Values = {}
        for path, said in _leaves(parse_object(value, at)):
            name = path.removeprefix("spec.template.")
            if name in ("metadata.labels", "metadata.annotations") and name != path:
                out = merged(out, {part: {f"pod{name.partition('.')[2].capitalize()}": said}})
            elif path in ("spec.template.spec.containers", "spec.template.spec.initContainers"):
                out = merged(out, _resources(said, f"{at}.{path}", containers))
            elif name in ("spec.nodeSelector", "spec.tolerations", "spec.affinity") and name != path:
                out = merged(out, {part: {name.removeprefix("spec."): said}})
            else:
                raise Wrong(f"{at}.{path}", "a field that the chart has: change the manifest instead", said)
        return out

    return override


_WHOLE = ("labels", "annotations", "nodeSelector", "affinity")


def _leaves(tree: JSON, at: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for name, value in tree.items():
        path = f"{at}{name}"
        if isinstance(value, Mapping) and value and name not in _WHOLE:
            out += _leaves(value, f"{path}.")
        else:
            out.append((path, value))
    return out


def _resources(value: Any, at: str, containers: Mapping[str, str]) -> Values:
    out: Values = {}
    for i, each in enumerate(parse_objects(value, at)):
        part = containers.get(str(each.get("name")))
        if part is None or set(each) - {"name", "resources"}:
            raise Wrong(f"{at}[{i}]", f"name and resources of {' or '.join(containers)}", each)
        out = merged(out, {part: {"resources": each.get("resources") or {}}})
    return out


USED: Mapping[str, Callable[[Any, str], Values]] = {
    "imagePullSecrets": _copied("imagePullSecrets"),
    "imagePullPolicy": _copied("imagePullPolicy", "Always", "IfNotPresent", "Never"),
    **dict(
        (
            _same("kubernetesProvider", *PROVIDERS),
            _same("cni.type", "Calico", "AmazonVPC", "AzureVNET"),
            _same("cni.binDir"),
            _same("cni.confDir"),
            _same("cni.specVersion", "Auto", "0.3.1", "0.4.0", "1.0.0"),
            _same("cni.installMode", "All", "CalicoOnly"),
            _same("calicoNetwork.bgp", "Enabled", "Disabled"),
            _same("calicoNetwork.mtu"),
            _same("calicoNetwork.hostPorts", "Enabled", "Disabled"),
            _same("calicoNetwork.containerIPForwarding", "Enabled", "Disabled"),
            _same("calicoNetwork.sysctl"),
            _same("calicoNetwork.linuxPolicySetupTimeoutSeconds"),
        )
    ),
    "cni.ipam.type": _ipam,
    "calicoNetwork.ipPools": _pools,
    "calicoNetwork.nodeAddressAutodetectionV4": _detection4,
    "calicoNetwork.nodeAddressAutodetectionV6": _detection6,
    "logging.cni": _logging,
    "nodeMetricsPort": _metrics,
    "controlPlaneNodeSelector": _node_selector,
    "controlPlaneTolerations": _tolerations,
    "calicoNodeDaemonSet": _pods("node", {"calico-node": "node", "install-cni": "cni"}),
    "calicoKubeControllersDeployment": _pods("kubeControllers", {"calico-kube-controllers": "kubeControllers"}),
    "typhaDeployment": _pods("typha", {"calico-typha": "typha"}),
    "componentResources": _component_resources,
    "typhaAffinity": _copied("typha.affinity"),
    "nodeUpdateStrategy": _copied("node.updateStrategy"),
    "proxy": _proxy,
}
