"""What a call imports that no server takes over: the modules as build/expand.py writes them, real calls, both stores.

Rule: none of the modules that were found to cost milliseconds; how many there are may only grow on purpose.
"""

from __future__ import annotations

import stat
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from plugin_needs import PLUGINS, find_needs

from tests.e2e.host import EtcdNode, Node, added, cleaned
from tests.netns.namespaces import Namespace

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.netns, pytest.mark.bundle]

LAUNCHERS = [ROOT / "build" / "launch" / f"{name}.py" for name in PLUGINS]
OF_GRPC = {"typing_extensions", "grpc_tools"}  # which it requires; which it tries, and which is not shipped
NEVER = {
    "ast", "asyncio", "dataclasses", "email", "grpc.aio", "http", "importlib.metadata", "inspect", "kubernetes",
    "pathlib", "prometheus_client", "pydantic", "pyroute2", "ssl", "subprocess", "typing_extensions", "urllib3", "yaml",
}  # fmt: skip
# gRPC itself needs these
GRPC_NEEDS = {"ast", "inspect", "logging", "socket", "threading", "typing", "grpc", "google"}

PROGRAM = """#!{python} -IS
import gc, os, sys
gc.disable()
sys.path[:0] = [{tree!r}, {packages!r}]
from {module} import main
status = main()
with open({listing!r}, "a") as f:
    f.write(" ".join(sorted(sys.modules)) + "\\n")
os._exit(status)
"""
# a host with podman's containers is asked for their names by modules that others do not import
WITHOUT_PODMAN = """#!/bin/sh
exec unshare --mount sh -c 'mount -t tmpfs tmpfs /var/lib/containers 2>/dev/null; exec "$0.py" "$@"' "$0" "$@"
"""
ENTRIES = {"calico": "cni_calico.plugin.main", "calico-ipam": "cni_calico.plugin.ipam.main"}


def use_tree(node: Node, tree: Path) -> Path:
    """Let the node's calls use it; where they list what they imported, a line for each."""
    node.bin_dir = node.root / "bin"
    node.bin_dir.mkdir()
    packages = next(p for p in sys.path if p.endswith("site-packages"))
    for name, module in ENTRIES.items():
        outer, script = node.bin_dir / name, node.bin_dir / f"{name}.py"
        listing = str(node.root / "imported")
        text = PROGRAM.format(python=sys.executable, tree=str(tree), packages=packages, module=module, listing=listing)
        for path, content in ((outer, WITHOUT_PODMAN), (script, text)):
            path.write_text(content)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return node.root / "imported"


def add_and_delete(node: Node, tree: Path, pod: Namespace) -> list[set[str]]:
    """What an ADD, and what a DEL imported."""
    listing = use_tree(node, tree)
    added(node, "c" * 64, pod)
    cleaned(node, "c" * 64)
    found = [set(line.split()) for line in listing.read_text().splitlines()]
    modules_needed, packages_needed = find_needs(LAUNCHERS)
    for imported in found:  # what the installer leaves out is never asked for
        ours = {name for name in imported if name.partition(".")[0] == "cni_calico"}
        assert ours - modules_needed == set()
        others = {name.partition(".")[0] for name in imported} & {*packages_distributions()}
        assert others - packages_needed <= {"cni_calico", *OF_GRPC}
    return found


def test_embedded_store(plain_node: Node, pod_ns: Namespace, expanded_tree: Path) -> None:
    for imported in add_and_delete(plain_node, expanded_tree, pod_ns):
        assert imported & (NEVER | GRPC_NEEDS) == set()
        assert len(imported) < 178, " ".join(sorted(imported))


@pytest.mark.etcd
def test_etcd(etcd_node: EtcdNode, pod_ns: Namespace, expanded_tree: Path) -> None:
    for imported in add_and_delete(etcd_node, expanded_tree, pod_ns):
        assert imported & (NEVER - GRPC_NEEDS) == set()
        assert "google.protobuf.internal.python_message" not in imported
        assert len(imported) < 257, sorted(imported)


def test_another_ipam_plugin(plain_node: Node, pod_ns: Namespace, expanded_tree: Path) -> None:
    """calico-ipam called by somebody else."""
    listing = use_tree(plain_node, expanded_tree)
    assert plain_node.call("ADD", "d" * 64, pod_ns.path, plugin="calico-ipam").ok
    assert plain_node.call("DEL", "d" * 64, plugin="calico-ipam").ok
    for line in listing.read_text().splitlines():
        assert set(line.split()) & (NEVER | GRPC_NEEDS) == set()
