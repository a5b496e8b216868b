"""The packed chart: the same bytes each time, in a directory and in a registry."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.install.test_chart import CHART, helm

sys.path.insert(0, str(ROOT / "build"))
sys.path.insert(0, str(ROOT / "build" / "image"))

from archive import tree_layer  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.helm, pytest.mark.registries]


def packed(directory: Path) -> Path:
    """As build/release/release.py packs it."""
    shutil.copytree(CHART, directory / "tree" / "cni-calico")
    out = directory / "chart.tgz"
    out.write_bytes(tree_layer(directory / "tree").data)
    return out


def pushed(chart: Path, registry: str) -> str:
    """The digest."""
    done = helm("push", "--plain-http", chart, f"oci://{registry}/charts")
    assert done.returncode == 0, done.stderr
    found = re.search(r"Digest: (sha256:[0-9a-f]{64})", done.stdout + done.stderr)
    assert found is not None
    return found[1]


def test_what_is_pulled_is_what_was_pushed(tmp_path: Path, registry: str) -> None:
    first, second = packed(tmp_path / "a"), packed(tmp_path / "elsewhere" / "b")
    assert first.read_bytes() == second.read_bytes()
    for chart in (first, second):  # Helm writes the file's time into what it pushes
        os.utime(chart, (0, 0))
    assert pushed(first, registry) == pushed(second, registry)
    os.utime(second, (1, 1))
    assert pushed(second, f"{registry}/later") != pushed(first, registry)
    done = helm("pull", "--plain-http", f"oci://{registry}/charts/cni-calico", "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    [pulled] = tmp_path.glob("cni-calico-*.tgz")
    assert hashlib.sha256(pulled.read_bytes()).digest() == hashlib.sha256(first.read_bytes()).digest()
    rendered = [helm("template", "calico", where, "--namespace", "kube-system").stdout for where in (pulled, CHART)]
    assert rendered[0] == rendered[1] != ""
