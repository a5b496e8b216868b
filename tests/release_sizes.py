"""How large the files of a release may be, in bytes (docs/build.md); for the tests of one that was made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "image"))

from archive import read_files

LIMITS = {
    "cni-calico-*-linux-*.tar.xz": 27_000_000,
    "cni-calico-bundle_*.deb": 20_000_000,
    "kubectl-calico_*_linux_*.tar.gz": 22_000_000,
    "calicoctl-*.pyz": 3_000_000,
}
IMAGE = 60_000_000  # its layers, compressed


def read_sizes(release: Path) -> dict[str, tuple[int, int]]:
    """Of each file that has a limit, and of each image of the archive: its bytes and the limit."""
    sizes = {}
    for pattern, limit in LIMITS.items():
        [file] = release.glob(pattern)
        sizes[file.name] = file.stat().st_size, limit
    [archive] = release.glob("*-images-*.tar")
    files = read_files(archive)
    for entry in json.loads(files["index.json"])["manifests"]:
        manifest = json.loads(files["blobs/" + entry["digest"].replace(":", "/")])
        name = entry["annotations"]["io.containerd.image.name"]
        sizes[name] = sum(layer["size"] for layer in manifest["layers"]), IMAGE
    return sizes


def too_large(release: Path) -> dict[str, tuple[int, int]]:
    return {name: sizes for name, sizes in read_sizes(release).items() if sizes[0] > sizes[1]}
