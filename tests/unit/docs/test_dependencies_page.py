"""README.md and docs/dependencies.md name every library that is shipped; pyproject.toml names none that is not used."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {
    "grpcio": "grpc",
    "protobuf": "google",
    "PyYAML": "yaml",
    "dnspython": "dns",
    "prometheus-client": "prometheus_client",
    "python-jsonpath": "jsonpath",
}


def names(requirements: list[str]) -> list[str]:
    return [re.split(r"[<>=\[]", text)[0] for text in requirements]


@cache
def imported(directory: str) -> frozenset[str]:
    """The top-level packages that modules below the directory import."""
    found: set[str] = set()
    for path in (ROOT / directory).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return frozenset(found)


@pytest.mark.parametrize("name", names(PROJECT["dependencies"]))
def test_what_is_shipped_is_used_and_explained(name: str) -> None:
    assert IMPORTED_AS.get(name, name) in imported("cni_calico")
    for page in ("README.md", "docs/dependencies.md"):
        assert name in (ROOT / page).read_text(), page


def test_nothing_else_is_imported() -> None:
    known = {IMPORTED_AS.get(name, name) for name in names(PROJECT["dependencies"])}
    standard = set(__import__("sys").stdlib_module_names) | {"_typeshed"}
    assert imported("cni_calico") - known - standard - {"cni_calico"} == set()


@pytest.mark.parametrize("name", names(PROJECT["optional-dependencies"]["build"]))
def test_what_builds_is_explained(name: str) -> None:
    assert name.lower() in (ROOT / "docs" / "dependencies.md").read_text().lower()
