"""PURE: which FelixConfigurations count on a node, and their parameters as the texts that variables would have.

Rule: node.NAME wins over the one that selects the node by its labels, that one over default; in one resource an
annotation config.projectcalico.org/NAME wins over the field. Of several that select the node only the oldest counts, as
a whole. Sources: upstream's agent, whose annotations have any parameter's name and the texts of variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.errors import InvalidConfig
from cni_calico.model.resources import Resource
from cni_calico.model.selectors import parse_selector
from cni_calico.nodeagent.context.encryption import ANNOTATIONS as ENCRYPTION
from cni_calico.nodeagent.context.encryption import STRICT_VARIABLE, ranges_text
from cni_calico.nodeagent.context.host_protection import failsafe_text

ANNOTATED = "config.projectcalico.org/"
FelixFields = Mapping[str, Any]
Texts = dict[str, tuple[str, str]]  # by the parameter's name in lower case: its name as it was written, its text

# Names in a FelixConfiguration of parameters whose FELIX_ variable is spelled differently.
RESOURCE_NAMES = {
    "bpfconntrackmode": "bpfconntrackcleanupmode",
    "endpointreportingdelay": "endpointreportingdelaysecs",
    "externalnodeslist": "externalnodescidrlist",
    "ipipenabled": "ipinipenabled",
    "ipipmtu": "ipinipmtu",
    "iptableslockprobeinterval": "iptableslockprobeintervalmillis",
    "iptableslocktimeout": "iptableslocktimeoutsecs",
    "iptablespostwritecheckinterval": "iptablespostwritecheckintervalsecs",
    "netlinktimeout": "netlinktimeoutsecs",
    "reportinginterval": "reportingintervalsecs",
    "reportingttl": "reportingttlsecs",
    "usagereportinginitialdelay": "usagereportinginitialdelaysecs",
    "usagereportinginterval": "usagereportingintervalsecs",
    "wireguardkeepalive": "wireguardpersistentkeepalive",
}
FORMER_NAMES = {"routetablerange": "routetableranges"}
_SELECTOR = "nodeSelector"


@dataclass(frozen=True, slots=True)
class Scoped:
    """The FelixConfiguration that selects a node ("" and {}: none does), and what is wrong with those that might."""

    name: str = ""
    spec: FelixFields | None = None
    warnings: tuple[str, ...] = ()


NOT_SCOPED = Scoped()


def spec_of(felix: Resource) -> FelixFields:
    """The fields of a FelixConfiguration, and its annotations that are parameters, under their whole names."""
    annotations = felix.metadata.annotations
    given = {name: text for name, text in annotations.items() if name.startswith(ANNOTATED)}
    given |= {name: annotations[key] for key, name in ENCRYPTION.items() if key in annotations}
    return {**felix.spec, **given} if given else felix.spec


def select_scoped(felix: Iterable[Resource], labels: Mapping[str, str] | None) -> Scoped:
    """``labels``: the Node's; None while they are not known: then nothing selects it."""
    warnings: list[str] = []
    selecting: list[Resource] = []
    for record in sorted(felix, key=lambda record: (record.metadata.creation_timestamp, record.metadata.name)):
        name, text = record.metadata.name, record.spec.get(_SELECTOR)
        if not text:
            continue
        if name == "default" or name.startswith("node."):
            warnings.append(f"{_SELECTOR} of FelixConfiguration {name} is not used: its name says where it counts")
            continue
        try:
            if labels is not None and parse_selector(str(text)).matches(labels):
                selecting.append(record)
        except InvalidConfig as e:
            warnings.append(f"FelixConfiguration {name} is not used: its {_SELECTOR} cannot be read: {e}")
    if not selecting:
        return Scoped(warnings=tuple(warnings))
    chosen = selecting[0].metadata.name
    if len(selecting) > 1:
        others = ", ".join(record.metadata.name for record in selecting[1:])
        warnings.append(
            "Multiple selector-scoped FelixConfigurations match this node; using the oldest, "
            f"{chosen}; without effect here: {others}"
        )
    return Scoped(chosen, spec_of(selecting[0]), tuple(warnings))


def sources_of(
    environ: Mapping[str, str], node_spec: FelixFields | None, default_spec: FelixFields | None, scoped: Scoped
) -> Iterator[tuple[str, Texts]]:
    """What gives parameters, the strongest first, each with how its parameters are called in a message."""
    environment = {name[6:]: value for name, value in environ.items() if name.upper().startswith("FELIX_")}
    if STRICT_VARIABLE in environ:
        environment.setdefault("WireguardStrict", environ[STRICT_VARIABLE])
    yield "FELIX_{}", {_now(name): (name, text) for name, text in environment.items()}
    specs = {"node.<name>": node_spec, scoped.name: scoped.spec, "default": default_spec}
    for name, spec in specs.items():
        annotations, fields = _texts_of(spec)
        yield f"annotation {{}} of FelixConfiguration {name}", annotations
        yield f"{{}} of FelixConfiguration {name}", fields


def _texts_of(spec: FelixFields | None) -> tuple[Texts, Texts]:
    """A FelixConfiguration's annotations and fields (``spec_of``) as the texts that variables would have."""
    annotations: Texts = {}
    fields: Texts = {}
    for name, value in sorted((spec or {}).items(), reverse=True):  # of spellings that differ in case the first counts
        if name.startswith(ANNOTATED):
            annotations[_now(name.removeprefix(ANNOTATED))] = (name, str(value))
        elif name != _SELECTOR:
            lower = RESOURCE_NAMES.get(name.lower(), _now(name))
            fields[lower] = (name, _text(lower, value))
    return annotations, fields


def _now(name: str) -> str:
    """A parameter's present name, in lower case."""
    return FORMER_NAMES.get(name.lower(), name.lower())


def _text(lower: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if lower == "routetableranges" and value is not None:
        return ranges_text(value)
    if isinstance(value, (list, tuple)) and lower.startswith("failsafe"):
        return ",".join(map(failsafe_text, value)) or "none"
    if isinstance(value, (list, tuple)) and all(isinstance(entry, str) for entry in value):
        return ",".join(value)
    return "" if value is None else repr(value)
