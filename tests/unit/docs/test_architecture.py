"""Every name on the map exists: modules, functions and classes of ARCHITECTURE.md, CONTRIBUTING.md and decisions.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions.md")
NAMED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)(?::([A-Za-z_]+))?`")
PATHS = re.compile(r"`([a-z_]+/[a-z0-9_./-]*)`")


def find(module: str) -> Path | None:
    below = ROOT / "cni_calico" / module.replace(".", "/")
    return next((p for p in (below.with_suffix(".py"), below / "__init__.py") if p.is_file()), None)


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page: str) -> None:
    missing = []
    packages = {p.name for p in (ROOT / "cni_calico").iterdir()}
    for module, name in NAMED.findall((ROOT / page).read_text()):
        if module.split(".")[0] not in packages:
            continue
        path = find(module)
        if path is None:
            missing.append(module)
        elif name:
            body = ast.parse(path.read_text()).body
            defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            if name not in defined:
                missing.append(f"{module}:{name}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    """Below the repository, below the code, or, in the section about calicoctl, below that."""
    places = (ROOT, ROOT / "cni_calico", ROOT / "cni_calico" / "ctl")
    paths = PATHS.findall((ROOT / page).read_text())
    assert paths and [path for path in paths if not any((place / path).exists() for place in places)] == []
