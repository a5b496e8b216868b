"""The benchmark measures what it says: a filled node is one that the product would have made; the table is whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cni_calico.ctl.main import run
from tests.e2e.host import Node, added, addresses
from tests.e2e.records import encode_config
from tests.netns.namespaces import Namespace

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "tests" / "bench"

pytestmark = pytest.mark.netns


def fill(node: Node, first: int, end: int) -> None:
    command = [sys.executable, BENCH / "fill.py", encode_config(node.datastore), node.nodename, str(first), str(end)]
    subprocess.run(["nsenter", f"--net={node.host.path}", *command], check=True)


def test_a_filled_node_is_in_order(plain_node: Node, pod_ns: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    fill(plain_node, 0, 1)
    fill(plain_node, 1, 150)
    taken = plain_node.taken()
    assert len(taken) == len(plain_node.handles()) == len(plain_node.endpoints()) == 150
    routed = {route["dst"] for route in plain_node.host.routes(4) if route.get("dev") == "fill0"}
    assert routed == set(taken)
    reply = added(plain_node, "a" * 64, pod_ns)
    assert not {address.split("/")[0] for address in addresses(reply)} & set(taken)
    assert run(["ipam", "check"], {"DATASTORE_TYPE": "local", "DATASTORE_PATH": plain_node.datastore.path}) == 0
    assert "found 0 problems" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.bundle
@pytest.mark.etcd
@pytest.mark.cnitool
def test_table() -> None:
    """One run of everything."""
    done = subprocess.run([sys.executable, BENCH / "table.py", "--runs", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for where in ("local, one-shot: ADD", "etcd, served: DEL", "local, 5000", "etcd, 5000", "all its processes"):
        assert f"| {where} |" in done.stdout
