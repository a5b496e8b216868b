"""docs/configuration.md names every key that the network configuration is parsed for, and every annotation."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
READERS = {"text", "flag", "number", "real", "section", "mapping", "texts"}


def called_with(path: str, functions: set[str], argument: int = 0) -> set[str]:
    """The texts that calls of these functions or methods have as that argument."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name in functions and len(node.args) > argument:
            value = node.args[argument]
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found.add(value.value)
    return found


KEYS = called_with("cni_calico/cni/netconf.py", {*READERS, "setting", "_parse_node_name"})
KEYS |= called_with("cni_calico/cni/netconf.py", {"_parse_node_name", "_pools"}, 1)
KEYS -= {"containerID", "ifname", "address"}  # of an attachment, of a result
ANNOTATIONS = called_with("cni_calico/plugin/annotations.py", {"parse", "has"})
ANNOTATIONS |= called_with("cni_calico/plugin/annotations.py", {"_first"}, 1)


def test_the_code_is_found() -> None:
    assert {"etcd_endpoints", "nodename", "mtu", "ipv4_pools", "readiness_gates"} <= KEYS
    assert {"ipFamilies", "hwAddr", "floatingIPs"} <= ANNOTATIONS


@pytest.mark.parametrize("key", sorted(KEYS | ANNOTATIONS))
def test_is_on_the_page(key: str) -> None:
    assert f"`{key}" in PAGE or f".{key}`" in PAGE or f"{key}`" in PAGE
