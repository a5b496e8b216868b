"""A CycloneDX bill of materials (1.6, JSON) of a release.

Rule: the same components give the same bytes: the serial number is a hash of the content, the time that of the build.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from components import Component
from edition import Edition

_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562, for URLs


def render_sbom(name: str, edition: Edition, parts: Mapping[str, Sequence[Component]]) -> str:
    """``parts``: bundle, plugins, image; what each consists of."""
    ours = {
        "type": "application",
        "bom-ref": "cni-calico",
        "name": name,
        "version": f"{edition.version}+{edition.build}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    merged: dict[str, tuple[Component, list[str]]] = {}
    for where, components in parts.items():
        for each in components:
            merged.setdefault(_reference(each, edition.architecture), (each, []))[1].append(where)
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(edition.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": ours,
        },
        "components": [_component(reference, each, where) for reference, (each, where) in sorted(merged.items())],
        "dependencies": _dependencies(merged),
    }
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(_NAMESPACE, content)}"
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _reference(each: Component, architecture: str) -> str:
    if each.kind == "pypi":
        return f"pkg:pypi/{each.name.replace('_', '-')}@{each.version}"
    if each.kind == "deb":
        version = each.version.replace("%", "%25").replace("+", "%2B").replace(":", "%3A").replace("~", "~")
        return f"pkg:deb/debian/{each.name.replace('+', '%2B')}@{version}?arch={architecture}&distro=bookworm"
    if each.kind == "golang":
        return f"pkg:golang/{each.name}@{each.version}"
    return f"pkg:generic/{each.name}?in={each.inside}"


def _component(reference: str, each: Component, where: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference,
        "purl": reference,
        "name": each.name,
        "version": each.version,
        "properties": [{"name": "cni-calico:in", "value": one} for one in where],
    }
    if each.licence:
        found["licenses"] = [{"license": {"name": each.licence}}]
    if each.source:
        found["properties"].append({"name": "debian:source", "value": each.source})
    return found


def _dependencies(merged: dict[str, tuple[Component, list[str]]]) -> list[dict[str, Any]]:
    by_name = {each.name: reference for reference, (each, _) in merged.items()}
    inside: dict[str, list[str]] = {}
    for reference, (each, _) in merged.items():
        inside.setdefault(by_name[each.inside] if each.inside else "cni-calico", []).append(reference)
    return [{"ref": reference, "dependsOn": sorted(found)} for reference, found in sorted(inside.items())]
