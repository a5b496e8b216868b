#!/usr/bin/env python3
"""Lays a packed chart out as an OCI image that ``helm pull oci://...`` takes: ``chart.py CHART.tgz DIRECTORY`` writes
the layout and prints its digest.

Rule: the digest follows from the chart's bytes alone. helm push writes the file's time into it; this does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "image"))

from archive import digest

_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class NoChart(SystemExit):
    """A file that is no packed chart."""


def read_metadata(chart: Path) -> dict[str, Any]:
    """Chart.yaml."""
    try:
        with tarfile.open(chart) as tar:
            (name,) = (each for each in tar.getnames() if each.count("/") == 1 and each.endswith("/Chart.yaml"))
            file = tar.extractfile(name)
            found: dict[str, Any] = yaml.safe_load(file.read() if file else b"")
            return found
    except (tarfile.TarError, ValueError, OSError, yaml.YAMLError) as e:
        raise NoChart(f"cannot read the chart {chart}: {e}") from e


def write_layout(chart: Path, out: Path) -> str:
    """The digest of the manifest in the layout."""
    metadata = read_metadata(chart)
    blobs: dict[str, bytes] = {}

    def put(data: bytes, media_type: str) -> dict[str, Any]:
        blobs[digest(data)] = data
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}

    config = put(json.dumps(metadata, sort_keys=True).encode(), _CONFIG)
    content = put(chart.read_bytes(), _CONTENT)
    annotations = {
        "org.opencontainers.image.title": str(metadata["name"]),
        "org.opencontainers.image.version": str(metadata["version"]),
        "org.opencontainers.image.description": str(metadata["description"]),
    }
    document = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [content]}
    manifest = put(json.dumps({**document, "annotations": annotations}, sort_keys=True).encode(), _MANIFEST)
    (out / "blobs" / "sha256").mkdir(parents=True)
    for name, data in blobs.items():
        (out / "blobs" / name.replace(":", "/")).write_bytes(data)
    (out / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (out / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    return str(manifest["digest"])


def main() -> None:
    words = argparse.ArgumentParser(
        prog="chart.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("chart", type=Path, metavar="CHART.tgz")
    words.add_argument("out", type=Path, metavar="DIRECTORY")
    given = words.parse_args()
    sys.stdout.write(write_layout(given.chart, given.out) + "\n")


if __name__ == "__main__":
    main()
