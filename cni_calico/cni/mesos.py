"""PURE: the labels that Mesos passes in the configuration, as labels of an endpoint.

Rule: any text becomes a valid label, as in upstream: "/" becomes ".", characters that a label may not have become "-",
and leading and trailing dots and dashes are removed. The label projectcalico.org/namespace sets the endpoint's
namespace instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cni_calico.cni.fields import JsonFields

NAMESPACE_LABEL = "projectcalico.org/namespace"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


@dataclass(frozen=True, slots=True)
class MesosLabels:
    """``namespace`` is "" if no label gives one."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def parse_mesos(args: JsonFields) -> MesosLabels:
    """The labels in ``args``; none if the runtime is not Mesos. Raises InvalidConfig."""
    if not args.values.get("org.apache.mesos"):
        return MesosLabels()
    info = args.section("org.apache.mesos").section("network_info").section("labels")
    namespace, labels = "", {}
    for entry in info.objects("labels"):
        label = JsonFields(entry, f"{info.where}labels.")
        key, value = label.text("key"), clean_label(label.text("value"))
        if key == NAMESPACE_LABEL:
            namespace = value
        else:
            labels[clean_label(key)] = value
    return MesosLabels(namespace, labels)


def clean_label(text: str) -> str:
    """``text`` as a label's name or value."""
    characters = ""
    for character in text.replace("/", "."):
        if character in _PLAIN:
            characters += character
        elif not characters.endswith("\0"):
            characters += "\0"  # each run of invalid characters becomes one dash
    parts = (part.strip("-") for part in characters.replace("\0", "-").split("."))
    return ".".join(filter(None, parts)).strip(".-")
