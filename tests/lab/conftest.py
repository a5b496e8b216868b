"""Labs for tests; each image is made once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.lab.images import make_agnhost, make_busybox, make_conformance, make_coredns, make_product


@pytest.fixture(scope="session")
def busybox_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_busybox(tmp_path_factory.mktemp("busybox"))


@pytest.fixture(scope="session")
def coredns_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_coredns(tmp_path_factory.mktemp("coredns"))


@pytest.fixture(scope="session")
def agnhost_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_agnhost(tmp_path_factory.mktemp("agnhost"))


@pytest.fixture(scope="session")
def conformance_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_conformance(tmp_path_factory.mktemp("conformance"))


@pytest.fixture(scope="session")
def product_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_product(tmp_path_factory.mktemp("product"))


@pytest.fixture(scope="session")
def own_bundle(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that no build replaces while a lab runs with it."""
    directory = tmp_path_factory.mktemp("bundle")
    subprocess.run([ROOT / "build" / "install-bundle.sh", "--plain", bundle, directory], check=True)
    return directory
