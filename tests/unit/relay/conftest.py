"""What tests of the relay share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.relays import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority's certificate, a server's and a client's."""
    directory = tmp_path_factory.mktemp("relay")
    make_certificates(directory)
    return directory
