"""Fixtures of the contract suite: every test runs once per backend."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from cni_calico.ctl.main import run
from cni_calico.datastore.interface import Datastore
from tests.contract.backends import BACKENDS, Backend, Space
from tests.contract.calicoctl.files import HEAD, config_of

# tests/e2e/kubernetes/store/test_native.py has in short what the slow one has
SLOW = {"native"}
PARAMS = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in sorted(BACKENDS)]


@pytest.fixture(scope="session", params=PARAMS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if BACKENDS[request.param].missing:
        pytest.skip(BACKENDS[request.param].missing)
    made = BACKENDS[request.param]()
    yield made
    made.close()


@pytest.fixture
def space(backend: Backend) -> Iterator[Space]:
    with backend.fresh() as fresh:
        yield fresh


@pytest.fixture
def store(space: Space) -> Datastore:
    return space.first


@pytest.fixture
def calicoctl(space, tmp_path, capsys, monkeypatch):
    """Runs calicoctl on the datastore; returns what it prints."""
    config = tmp_path / "calicoctl.cfg"
    config.write_text(HEAD + config_of(space.address))

    def call(*argv, stdin="", code=0):
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        got = run(["-c", str(config), *argv], {})
        out, err = capsys.readouterr()
        assert got == code, (out, err)
        return out + err if code else out

    return call
