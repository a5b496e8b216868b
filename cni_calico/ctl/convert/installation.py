"""``calicoctl installation convert``: an operator's Installation as values of the chart.

Rule: every field is used, refused with what to do, or named as without effect; where one is refused nothing is printed
but all that are. ``status.computed``, in which the operator has filled in its defaults, counts instead of ``spec``; an
``overlay`` is merged over ``default``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.convert.combinations import find_contradictions
from cni_calico.ctl.convert.fields import BY_PATH, REFUSED, STORED, USED, InstallationField
from cni_calico.ctl.convert.values import USED as VALUES_OF
from cni_calico.ctl.convert.values import Values, merged, nested
from cni_calico.ctl.input.manifests import read_files, split_lists
from cni_calico.ctl.output.texts import render_yaml
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.fields import JSON, Wrong, parse_object, shown

_API = "operator.tigera.io/"
_NO_POOLS = "NO_DEFAULT_POOLS"
_HEAD = """\
# Values of the chart for the Installation that {source} has: helm install calico CHART --namespace kube-system -f FILE
# docs/from-operator.md says what comes before.
"""


@dataclass(frozen=True, slots=True)
class Converted:
    """``notes``: the fields that became nothing, with why."""

    values: Values
    notes: tuple[str, ...]


def convert(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """The values as YAML. Raises InvalidConfig, which names every field that is refused."""
    source = "standard input" if arguments.filename == "-" else arguments.filename
    documents = list(split_lists(read_files(arguments.filename, arguments.stdin)))
    converted = convert_installation(select_installation(documents, source), source)
    notes = "".join(f"# {note}\n" for note in converted.notes)
    return f"{_HEAD.format(source=source)}{notes}{render_yaml(converted.values)}"


def select_installation(documents: Sequence[JSON], source: str) -> JSON:
    """The fields of the Installation in the documents. Raises InvalidConfig."""
    found: dict[str, JSON] = {}
    for document in documents:
        if document.get("kind") == "Installation" and str(document.get("apiVersion")).startswith(_API):
            metadata = document.get("metadata")
            found[str(metadata.get("name")) if isinstance(metadata, Mapping) else ""] = document
    main = found.get("default")
    if main is None:
        raise InvalidConfig(
            f"cannot convert {source}: it has no Installation 'default' of {_API.rstrip('/')}",
            details="kubectl get installations.operator.tigera.io -o yaml prints it",
        )
    try:
        computed = (main.get("status") or {}).get("computed")
        if computed:
            return parse_object(computed, "status.computed")
        over = (found.get("overlay") or {}).get("spec") or {}
        return merged_fields(parse_object(main.get("spec") or {}, "spec"), parse_object(over, "spec"))
    except (Wrong, AttributeError) as e:
        raise InvalidConfig(f"cannot convert {source}: {e}") from e


def merged_fields(one: JSON, other: JSON) -> dict[str, Any]:
    """As the operator merges an overlay: a list takes the other's place."""
    both = (name for name in other if isinstance(one.get(name), Mapping) and isinstance(other[name], Mapping))
    return {**one, **other, **{name: merged_fields(one[name], other[name]) for name in both}}


def convert_installation(spec: JSON, source: str) -> Converted:
    """Raises InvalidConfig."""
    values: Values = {}
    notes, wrong = [], []
    for path, field, value in _fields(spec, ""):
        if field is None:
            wrong.append(
                f"{path}: {shown(value)}: this version does not know the field: leave it out if you do not need it"
            )
        elif field.becomes == USED:
            try:
                values = merged(values, VALUES_OF[field.path](value, path))
            except Wrong as e:
                wrong.append(str(e))
        elif field.becomes == REFUSED:
            if value not in field.unless:
                wrong.append(f"{path}: {shown(value)}: {field.text}")
        elif field.becomes == STORED:
            notes.append(f"{path}: stored already: {field.text}")
        else:
            notes.append(f"{path}: no effect: {field.text}")
    wrong += map(str, find_contradictions(spec))
    try:
        values = with_defaults(values)
    except Wrong as e:
        wrong.append(str(e))
    if wrong:
        raise InvalidConfig(f"cannot convert the Installation of {source}: {wrong[0]}", details="; ".join(wrong[1:]))
    return Converted(values, tuple(notes))


def _fields(tree: JSON, at: str) -> Iterator[tuple[str, InstallationField | None, Any]]:
    """Each field that is given, with its row; None for one that is in no row."""
    for name, value in tree.items():
        path = f"{at}{name}"
        field = BY_PATH.get(path)
        if field is None and isinstance(value, Mapping) and any(known.startswith(f"{path}.") for known in BY_PATH):
            yield from _fields(value, f"{path}.")
        elif value is not None:
            yield path, field, value


def with_defaults(values: Values) -> Values:
    """With what the operator decides where an Installation says nothing, and the chart would decide otherwise."""
    installation = values.get("installation") or {}
    cni, network = installation.get("cni") or {}, installation.get("calicoNetwork") or {}
    provider = installation.get("kubernetesProvider") or ""
    if not cni.get("type"):
        own = {"EKS": "AmazonVPC", "AKS": "AzureVNET", "GKE": "GKE"}.get(provider, "Calico")
        if own == "GKE":
            raise Wrong("cni.type", "Calico: GKE's network cannot be replaced", own)
        cni = {**cni, "type": own}
        values = merged(values, nested("installation.cni.type", own))
    if cni["type"] != "Calico":
        if network.get("ipPools"):
            raise Wrong(
                "calicoNetwork.ipPools", f"none: with cni.type {cni['type']} addresses are that network's", "pools"
            )
        # where the pods' network is another's, the chart makes no pools anyway
        kept = [each for each in (values.get("node") or {}).get("env") or () if each["name"] != _NO_POOLS]
        return {**values, "node": {**(values.get("node") or {}), "env": kept}}
    bgp = network.get("bgp") or ("Disabled" if provider == "EKS" else "Enabled")
    values = merged(values, nested("installation.calicoNetwork.bgp", bgp))
    if bgp == "Disabled" and (cni.get("ipam") or {}).get("type") == "HostLocal":
        values = merged(values, {"network": "none"})
    return values
