"""Images of several processors as one: an OCI index for each name, in one archive that skopeo copies to a registry.

Rule: a platform's image stays byte for byte what it was. The index says which image and which version it is, so that
whoever checks its signature also knows whether a tag that leads to it is the right one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive import digest, read_files
from made import Unjoinable

_INDEX = "application/vnd.oci.image.index.v1+json"
_NAME = "io.containerd.image.name"
_LABEL = "org.opencontainers.image"


@dataclass(frozen=True)
class Images:
    """``digests``: an image's full name (``PREFIX/node:v1.2.3``) -> the digest of its index; ``platforms``: the same
    name -> processor -> digest of the image.
    """

    files: dict[str, bytes]
    digests: dict[str, str]
    platforms: dict[str, dict[str, str]]


def _blob(files: Mapping[str, bytes], named: str, archive: Path) -> bytes:
    data = files.get("blobs/" + named.replace(":", "/"))
    if data is None or digest(data) != named:
        raise Unjoinable(f"{archive} is damaged: {named} is {'missing' if data is None else 'other bytes'}")
    return data


def _read_entries(
    files: Mapping[str, bytes], archive: Path, architecture: str, build: str
) -> dict[str, dict[str, Any]]:
    """An image's name -> its descriptor, as an index has it."""
    found: dict[str, dict[str, Any]] = {}
    for entry in json.loads(files["index.json"])["manifests"]:
        manifest = json.loads(_blob(files, entry["digest"], archive))
        config = json.loads(_blob(files, manifest["config"]["digest"], archive))
        for layer in manifest["layers"]:
            _blob(files, layer["digest"], archive)
        name = entry["annotations"][_NAME]
        if config["architecture"] != architecture:
            raise Unjoinable(f"{archive} has an image for {config['architecture']}: {name}; wanted is {architecture}")
        revision = config["config"].get("Labels", {}).get(f"{_LABEL}.revision")
        if revision != build:
            raise Unjoinable(
                f"{archive} has an image of build {revision}: {name}; BUILDINFO-{architecture} says {build}"
            )
        platform = {"architecture": config["architecture"], "os": config["os"]}
        found[name] = {key: entry[key] for key in ("mediaType", "digest", "size")} | {"platform": platform}
    return found


def join_platforms(archives: Mapping[str, tuple[Path, str]], version: str) -> Images:
    """``archives``: processor -> the archive of its images, and the build that they are of. Raises Unjoinable."""
    blobs: dict[str, bytes] = {}
    entries: dict[str, dict[str, dict[str, Any]]] = {}
    for architecture, (archive, build) in sorted(archives.items()):
        files = read_files(archive)
        entries[architecture] = _read_entries(files, archive, architecture, build)
        blobs |= {name: data for name, data in files.items() if name.startswith("blobs/")}
    names = {architecture: set(found) for architecture, found in entries.items()}
    if len({frozenset(each) for each in names.values()}) != 1:
        raise Unjoinable(f"the archives have images of other names: {sorted(set.union(*names.values()))}")
    listed, digests = [], {}
    for name in next(iter(entries.values())):
        index = _json(
            {
                "schemaVersion": 2,
                "mediaType": _INDEX,
                "manifests": [entries[architecture][name] for architecture in sorted(entries)],
                "annotations": {f"{_LABEL}.title": _short(name), f"{_LABEL}.version": version},
            }
        )
        digests[name] = digest(index)
        blobs["blobs/" + digests[name].replace(":", "/")] = index
        annotations = {_NAME: name, f"{_LABEL}.ref.name": name}
        listed.append({"mediaType": _INDEX, "digest": digests[name], "size": len(index), "annotations": annotations})
    top = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": listed})
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": top, **blobs}
    platforms = {name: {arch: found[name]["digest"] for arch, found in entries.items()} for name in digests}
    return Images(files, digests, platforms)


def _short(name: str) -> str:
    """node, of PREFIX/node:v1.2.3"""
    return name.rpartition(":")[0].rpartition("/")[2]


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
