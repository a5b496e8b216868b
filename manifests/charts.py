"""Renders the Helm chart: the manifests' own documents, with values in the places that users set.

Rule: a template is a document of the manifests in which some values are expressions, so chart and manifests cannot
differ: with the chart's defaults ``helm template`` gives the manifests, and definitions that an uninstallation keeps.
Everything else of the chart (values, schema, helpers) is in manifests/source/chart as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

SOURCE = Path(__file__).resolve().parent / "source" / "chart"
DISTRIBUTIONS = Path(__file__).resolve().parent / "distributions.yaml"
# what the chart's templates read of a distribution
_OF_A_DISTRIBUTION = (
    *("provider", "title", "page", "binDir", "confDir", "range", "inKubeadmConfig", "encapsulation", "detection"),
    *("forwarding", "avoid", "cniTypes", "refused", "disable"),
)
_HEAD = "{{- /* Made from manifests/source by manifests/render.py; change it there. */}}\n"
_IMAGES = {
    "calico-node": "node",
    "calico-kube-controllers": "kubeControllers",
    "calico-typha": "typha",
    "calico-webhooks": "webhooks",
    "install-cni": "cni",
    "upgrade-ipam": "cni",
}
_PARTS = {
    "calico-node": "node",
    "calico-kube-controllers": "kubeControllers",
    "calico-typha": "typha",
    "calico-webhooks": "webhooks",
}
# environment variables of calico-node that values set
_VARIABLES = {
    "CALICO_IPV4POOL_IPIP": 'include "cni-calico.ipip" .',
    "CALICO_IPV4POOL_VXLAN": 'include "cni-calico.vxlan" .',
    "CLUSTER_TYPE": 'eq (include "cni-calico.backend" .) "bird" | ternary "k8s,bgp" "k8s"',
    "FELIX_IPV6SUPPORT": 'include "cni-calico.pool6" . | fromYaml | empty | ternary "false" "true"',
}
_OURS = 'include "cni-calico.ours" .'
# volumes of calico-node that only who installs the plugins needs -> the value that gives the path, if one does
_PLUGIN_VOLUMES = {
    "cni-bin-dir": 'include "cni-calico.directory" (list . "binDir")',
    "cni-net-dir": 'include "cni-calico.directory" (list . "confDir")',
    "host-local-net-dir": "",
}
_FORWARDING = 'include "cni-calico.forwarding" .'
_CALICO_IPAM = 'eq .Values.installation.cni.ipam.type "Calico"'
_HOST_PORTS = 'eq .Values.installation.calicoNetwork.hostPorts "Enabled"'
_RELAY_VARIABLES = {"TYPHA_CLIENTAPITOKENS": '.Values.typha.apiTokens | ternary "true" "false"'}
_CONFIG = {
    "calico_backend": 'include "cni-calico.backend" .',
    "veth_mtu": 'include "cni-calico.mtu" .',
    "typha_service_name": 'include "cni-calico.relays" .',
    "etcd_endpoints": ".Values.etcd.endpoints",
    "etcd_ca": 'empty .Values.etcd.tls.ca | ternary "" "/calico-secrets/etcd-ca"',
    "etcd_cert": 'empty .Values.etcd.tls.crt | ternary "" "/calico-secrets/etcd-cert"',
    "etcd_key": 'empty .Values.etcd.tls.key | ternary "" "/calico-secrets/etcd-key"',
}
_CUSTOM, _NATIVE = (
    f'(eq (include "cni-calico.apiGroup" .) "{group}")'
    for group in ("crd.projectcalico.org/v1", "projectcalico.org/v3")
)
_RELAYS = 'ne (include "cni-calico.relays" .) "none"'
# file of the chart -> the manifest whose documents it has, whether those are its definitions, when it is in force
_TEMPLATES = {
    "kubernetes": ("calico.yaml", False, _CUSTOM[1:-1]),
    "native": ("calico-v3.yaml", False, _NATIVE[1:-1]),
    "admission-v3": ("admission-v3.yaml", False, f'and {_NATIVE} (include "cni-calico.mutating" .)'),
    "etcd": ("calico-etcd.yaml", False, 'eq .Values.datastore "etcd"'),
    "crds": ("crds.yaml", True, f"and .Values.includeCRDs {_CUSTOM}"),
    "crds-v3": ("crds-v3.yaml", True, f"and .Values.includeCRDs {_NATIVE}"),
    "typha": ("calico-typha.yaml", False, f"and ({_RELAYS}) {_CUSTOM}"),
    "typha-v3": ("calico-typha-v3.yaml", False, f"and ({_RELAYS}) {_NATIVE}"),
    "webhooks": ("calico-webhooks.yaml", False, 'eq (include "cni-calico.webhooks" .) "true"'),
    "podmonitor": ("monitoring/podmonitor.yaml", False, ".Values.podMonitor.enabled"),
}
Document = dict[str, Any]


class _Text(yaml.SafeDumper):
    """Writes values that occur twice in full, and long texts as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Text.add_representer(str, _string)


def quoted(expression: str) -> str:
    """A value that is the text of an expression."""
    return f"@@quoted {expression}@@"


def block(expression: str) -> str:
    """A value that is the YAML of an expression."""
    return f"@@block {expression}@@"


def if_given(key: str, expression: str) -> dict[str, str]:
    """A key that is left out where its value is empty."""
    return {f"@@given {expression}@@{key}": "@@"}


def given_or(key: str, expression: str, default: object) -> Document:
    """A key whose value is that of the expression; the default where that is empty."""
    return {f"@@or {expression}@@{key}": default, f"@@end {key}@@": "@@"}


def only_if(condition: str, key: str, value: object) -> Document:
    """A key that is there where the condition holds."""
    return {f"@@if {condition}@@{key}": value, f"@@end {key}@@": "@@"}


def items_only_if(condition: str, items: list[Any]) -> list[Any]:
    """Items of a list, or lines of a text, that are there where the condition holds."""
    return [f"@@begin {condition}@@", *items, "@@close@@"]


def render_template(documents: list[Document], condition: str) -> str:
    """One file of the chart, in force where the condition holds."""
    texts = [_fill(yaml.dump(document, Dumper=_Text, sort_keys=False, width=1000)) for document in documents]
    return f"{_HEAD}{{{{- if {condition} }}}}\n" + "".join(f"---\n{text}" for text in texts) + "{{- end }}\n"


def _fill(text: str) -> str:
    """The text of YAML with expressions where the markers stand."""
    lines = []
    for line in text.replace("{{", "{{ `{{` }}").splitlines():
        indent = len(line) - len(line.lstrip(" "))
        if given := re.fullmatch(r" *(- )?'?@@given (.*)@@(\w+)'?: '?@@'?", line):
            dash, expression, key = given[1] or "", given[2].replace("''", "'"), given[3]
            depth = indent + len(dash) + 2
            lines += [
                f"{' ' * indent}{{{{- with {expression} }}}}",
                f"{' ' * indent}{dash}{key}: {{{{- toYaml . | nindent {depth} }}}}",
                f"{' ' * indent}{{{{- end }}}}",
            ]
        elif found := re.fullmatch(r" *'?@@or (.*)@@(\w+)'?:", line):
            lines += [
                f"{' ' * indent}{{{{- with {found[1]} }}}}",
                f"{' ' * indent}{found[2]}: {{{{- toYaml . | nindent {indent + 2} }}}}",
                f"{' ' * indent}{{{{- else }}}}",
                f"{' ' * indent}{found[2]}:",
            ]
        elif found := re.fullmatch(r" *'?@@if (.*)@@(\w+)'?:", line):
            lines += [f"{' ' * indent}{{{{- if {found[1]} }}}}", f"{' ' * indent}{found[2]}:"]
        elif found := re.fullmatch(r" *(?:- )?'?@@begin (.*)@@'?", line):
            lines.append(f"{' ' * indent}{{{{- if {found[1]} }}}}")
        elif re.fullmatch(r" *(?:- )?'?@@close@@'?|" r" *'?@@end \w+@@'?: '?@@'?", line):
            lines.append(f"{' ' * indent}{{{{- end }}}}")
        elif found := re.fullmatch(r" *'?@@merge (.*)@@'?: '?@@'?", line):
            merged = f"{{{{- with {found[1]} }}}}{{{{- toYaml . | nindent {indent} }}}}{{{{- end }}}}"
            lines.append(f"{' ' * indent}{merged}")
        elif found := re.fullmatch(r" *(?:- '?@@item|@@lines) (.*)@@'?", line):
            lines.append(f"{' ' * indent}{{{{- {found[1]} | nindent {indent} }}}}")
        elif found := re.fullmatch(r"( *(?:- )?[\w./-]+:) '?@@(quoted|block) (.*)@@'?", line):
            expression = found[3].replace("''", "'")
            how = f"({expression}) | quote" if found[2] == "quoted" else f"- toYaml {expression} | nindent {indent + 2}"
            lines.append(f"{found[1]} {{{{{' ' if found[2] == 'quoted' else ''}{how} }}}}")
        else:
            lines.append(line)
    if left := [line for line in lines if "@@" in line]:
        raise ValueError(f"a marker is not understood: {left[0].strip()}")
    return "\n".join(lines) + "\n"


def with_values(document: Document) -> Document:
    """The document with expressions in the places that users set."""
    change = _CHANGES.get(document["kind"])
    if change is not None:
        change(document)
    return document


def _definition(document: Document) -> None:
    # what is stored goes with its definition
    document["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"


def _config_map(document: Document) -> None:
    data = document["data"]
    data.update({name: quoted(expression) for name, expression in _CONFIG.items() if name in data})
    if "cni_network_config" in data:
        data["cni_network_config"] = _network_config(data["cni_network_config"])


def _network_config(text: str) -> str:
    """The conflist with what values add to it and take from it."""
    lines = text.splitlines()
    lines[lines.index('  "cniVersion": "1.0.0",')] = f"  {text_of('cniVersion')}"
    lines[lines.index('      "log_level": "info",')] = f"      {text_of('pluginKeys')}"
    ours = lines.index('      "type": "calico",')
    lines[ours + 1 : ours + 1] = items_only_if(
        _FORWARDING, ['      "container_settings": {"allow_ip_forwarding": true},']
    )
    ipam = lines.index('      "ipam": {')
    calico_ipam = lines[ipam : ipam + 3]
    lines[ipam : ipam + 3] = [
        *items_only_if(_CALICO_IPAM, calico_ipam),
        *items_only_if(f"not ({_CALICO_IPAM})", [f"      {text_of('hostLocal')}"]),
    ]
    first = lines.index('      "type": "portmap",') - 1
    last = lines.index("    },", first)
    lines[first : last + 1] = [
        *items_only_if(_HOST_PORTS, lines[first : last + 1]),
        *items_only_if(".Values.installation.calicoNetwork.sysctl", [f"    {text_of('tuning')}"]),
    ]
    return "\n".join(lines)


def text_of(name: str) -> str:
    """A line, or several, of a text that a definition of the chart's gives."""
    return f'@@lines include "cni-calico.{name}" .@@'


def _secret(document: Document) -> None:
    document.update(if_given("data", 'include "cni-calico.etcdSecrets" . | fromYaml'))


def _workload(document: Document) -> None:
    part = _PARTS.get(document["metadata"]["name"])
    if part is None:
        return
    pod = document["spec"]["template"]
    values = f".Values.{part}"
    pod["metadata"].update(if_given("annotations", f"{values}.podAnnotations"))
    pod["metadata"]["labels"].update({f"@@merge {values}.podLabels@@": "@@"})
    spec = pod["spec"]
    for key in ("tolerations", "nodeSelector"):
        if key in spec:
            spec[key] = block(f"{values}.{key}")
    if "affinity" in spec:
        spec.update(given_or("affinity", f"{values}.affinity", spec.pop("affinity")))
    elif part == "node":
        spec.update(if_given("affinity", 'include "cni-calico.nodeAffinity" . | fromYaml'))
    else:
        spec.update(if_given("affinity", f"{values}.affinity"))
    if "priorityClassName" in spec:
        spec["priorityClassName"] = quoted(f"{values}.priorityClassName")
    spec.update(if_given("imagePullSecrets", ".Values.imagePullSecrets"))
    if part == "node":
        spec_of_set = document["spec"]
        spec_of_set.update(given_or("updateStrategy", f"{values}.updateStrategy", spec_of_set.pop("updateStrategy")))
    if part in ("typha", "webhooks"):
        document["spec"]["replicas"] = block(f"{values}.replicas")
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        _container(container)
    if part == "node":
        _plugins(spec)


def _plugins(spec: Document) -> None:
    """Where the plugins go, or that none are installed."""
    containers = spec.pop("containers")
    spec.update(only_if(_OURS, "initContainers", spec.pop("initContainers")))
    for container in containers:
        container["volumeMounts"] = _volumes(container["volumeMounts"])
    spec["containers"] = containers
    for volume in spec["volumes"]:
        if expression := _PLUGIN_VOLUMES.get(volume["name"]):
            volume["hostPath"]["path"] = quoted(expression)
    spec["volumes"] = _volumes(spec.pop("volumes"))


def _volumes(items: list[Any]) -> list[Any]:
    out: list[Any] = []
    for item in items:
        out += items_only_if(_OURS, [item]) if item["name"] in _PLUGIN_VOLUMES else [item]
    return out


def _container(container: Document) -> None:
    name = container["name"]
    values = f".Values.{_IMAGES[name]}"
    container["image"] = quoted(f'include "cni-calico.image" (list . {values})')
    container["imagePullPolicy"] = quoted(".Values.imagePullPolicy")
    container.pop("resources", None)
    container.update(if_given("resources", f"{values}.resources"))
    variables = {"calico-node": _VARIABLES, "calico-typha": _RELAY_VARIABLES}.get(name, {})
    for variable in container.get("env", ()):
        if variable["name"] in variables:
            variable["value"] = quoted(variables[variable["name"]])
    if name == "calico-node":
        container["env"].append('@@item include "cni-calico.variables" .@@')
    if name == "calico-kube-controllers":
        container["env"].append('@@item include "cni-calico.moreVariables" .Values.kubeControllers.env@@')
    if name == "install-cni":
        container["env"].append('@@item include "cni-calico.installVariables" .@@')


def _admission(document: Document) -> None:
    document["apiVersion"] = quoted('include "cni-calico.mutating" .')


_CHANGES: dict[str, Callable[[Document], None]] = {
    "ConfigMap": _config_map,
    "MutatingAdmissionPolicy": _admission,
    "MutatingAdmissionPolicyBinding": _admission,
    "CustomResourceDefinition": _definition,
    "Secret": _secret,
    "DaemonSet": _workload,
    "Deployment": _workload,
}


def _replace(text: str, words: Mapping[str, str]) -> str:
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


def _render_distributions(known: Document) -> str:
    """What the templates read of the distributions; who writes the chart's pages reads the rest."""
    kept = [{key: each[key] for key in _OF_A_DISTRIBUTION if key in each} for each in known["distributions"]]
    text = yaml.dump({**known, "distributions": kept}, Dumper=_Text, sort_keys=False, width=1000)
    return "# Made from manifests/distributions.yaml by manifests/render.py; change it there.\n" + text


def render_chart(manifests: Mapping[str, str], version: str) -> dict[str, str]:
    """The files of the chart: path below the chart -> content. ``manifests``: file name -> content, as rendered."""
    known = yaml.safe_load(DISTRIBUTIONS.read_text())
    providers = [each["provider"] for each in known["distributions"]]
    types = [kind for each in known["distributions"] for kind in each.get("cniTypes", ())]
    words = {
        "@VERSION@": version,
        '"@PROVIDERS@"': ", ".join(json.dumps(name) for name in providers),
        '"@CNI_TYPES@"': ", ".join(json.dumps(name) for name in dict.fromkeys(types)),
    }
    files = {
        str(path.relative_to(SOURCE)): _replace(path.read_text(), words)
        for path in sorted(SOURCE.rglob("*"))
        if path.is_file()
    }
    files["distributions.yaml"] = _render_distributions(known)
    for name, (manifest, definitions, condition) in _TEMPLATES.items():
        found = [document for document in yaml.safe_load_all(manifests[manifest]) if document]
        chosen = [each for each in found if (each["kind"] == "CustomResourceDefinition") == definitions]
        files[f"templates/{name}.yaml"] = render_template([with_values(each) for each in chosen], condition)
    return files
