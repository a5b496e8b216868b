"""The directories of a node: their variables, and that nobody else spells them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from cni_calico import directories

SOURCES = Path(directories.__file__).parent


@pytest.mark.parametrize(
    ("read", "variable", "default"),
    [
        (directories.run_dir, "CALICO_RUN_DIR", "/var/run/calico"),
        (directories.state_dir, "CALICO_STATE_DIR", "/var/lib/calico"),
        (directories.nodename_file, "CALICO_NODENAME_FILE", "/var/lib/calico/nodename"),
    ],
)
def test_a_variable_that_says_nothing_leaves_the_default(read, variable, default):
    assert read({}) == read({variable: ""}) == read({variable: " "}) == default
    assert read({variable: " /elsewhere\n"}) == "/elsewhere"


def test_no_other_module_spells_them():
    """Docstrings and sentences may name them; a path that is used begins at the constant."""
    found = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in SOURCES.rglob("*.py")
        if path.name != "directories.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
        if node.value.startswith(("/var/run/calico", "/var/lib/calico", "/var/log/calico", "/var/run/secrets"))
    ]
    assert found == []
