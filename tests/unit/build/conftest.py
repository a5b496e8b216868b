"""Fixtures: the native front as it is built, with sanitizers, and for arm64 under an emulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.front import Front, compile_variant, make_front, write_header


@pytest.fixture(scope="session")
def header(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("header")
    write_header(directory)
    return directory


@pytest.fixture(scope="session")
def compiled(header: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a variant."""
    made: dict[str, Path] = {}

    def find(variant: str) -> Path:
        if variant not in made:
            made[variant] = tmp_path_factory.mktemp(variant)
            compile_variant(variant, header, made[variant])
        return made[variant]

    return find


@pytest.fixture(params=["native", "sanitized", pytest.param("arm64", marks=pytest.mark.arm64)])
def any_front(request: pytest.FixtureRequest, compiled: Callable[[str], Path], tmp_path: Path) -> Front:
    return make_front(compiled(request.param), request.param, tmp_path)


@pytest.fixture(params=["native", "sanitized"])
def front(request: pytest.FixtureRequest, compiled: Callable[[str], Path], tmp_path: Path) -> Front:
    """Where the emulator would be what is tested."""
    return make_front(compiled(request.param), request.param, tmp_path)
