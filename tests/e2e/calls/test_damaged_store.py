"""An embedded datastore of which a page is damaged, through the executables: calls refuse it, calicoctl says what is
wrong, saves the rest, and running containers keep their addresses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.keys import HandleKey, etcd_path
from tests.e2e.host import Node, added, addresses
from tests.fixtures.namespaces import MakeNamespace

pytestmark = [pytest.mark.netns, pytest.mark.takes(10)]

PAGE, RECORDS, MARK = 4096, 120, b"looked-for-"


@pytest.fixture(params=["sources", pytest.param("frozen", marks=[pytest.mark.bundle, pytest.mark.slow])])
def node_with_records(request: pytest.FixtureRequest, plain_node: Node) -> Iterator[Node]:
    """Its store has many pages, all of them in its one file."""
    if request.param == "frozen":
        plain_node.bin_dir = request.getfixturevalue("bundle")
    many = {etcd_path(HandleKey(f"h{n:04}")): {"x": f"{MARK.decode()}{n:04}" + "y" * 400} for n in range(RECORDS)}
    plain_node.put(many)
    yield plain_node


def calicoctl(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "cni_calico.ctl.main"] if node.bin_dir is None else [f"{node.bin_dir}/calicoctl"]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.getcwd(),
        "DATASTORE_TYPE": "local",
        "DATASTORE_PATH": node.datastore.path,
        "CALICO_STATE_DIR": str(node.root / "state"),
    }
    argv = ["nsenter", f"--net={node.host.path}", *program, *words]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=100)


def damage(path: Path, how: str) -> None:
    """Of a page that has records: all of it, or a piece in its middle."""
    raw = bytearray(path.read_bytes())
    at = raw.index(MARK + f"{RECORDS // 2:04}".encode()) // PAGE * PAGE
    noise = bytes((i * 13 + 7) % 256 for i in range(PAGE))
    if how == "a page":
        raw[at : at + PAGE] = noise
    else:
        raw[at + PAGE // 2 : at + PAGE // 2 + 700] = noise[:700]
    path.write_bytes(raw)


@pytest.mark.parametrize("how", ["a page", "noise in a page"])
def test_a_damaged_page(node_with_records: Node, make_pod_ns: MakeNamespace, how: str) -> None:
    node, living = node_with_records, make_pod_ns()
    [held, *_] = addresses(added(node, "c1", living))
    path, saved = Path(node.datastore.path), node.root / "saved.db"
    assert not path.with_name(path.name + "-wal").exists() or not path.with_name(path.name + "-wal").stat().st_size
    assert calicoctl(node, "datastore", "check").stdout.endswith("is in order.\n")
    damage(path, how)
    raw = path.read_bytes()
    checked = calicoctl(node, "datastore", "check")
    assert checked.returncode == 1 and "is damaged" in checked.stderr and "salvage" in checked.stderr
    assert json.loads(calicoctl(node, "datastore", "check", "-o", "json").stdout)["problems"]
    salvaged = calicoctl(node, "datastore", "salvage", "-o", str(saved))
    assert salvaged.returncode == 0, salvaged.stderr
    assert path.read_bytes() == raw, "what is damaged stays as it is"
    lost = [line for line in salvaged.stdout.splitlines() if line.startswith("Lost: ")]
    assert lost or "Found: " in salvaged.stdout
    again = calicoctl(node, "datastore", "salvage", "-o", str(saved))
    assert again.returncode == 1 and "exists already" in again.stderr
    replace(path, saved)
    assert calicoctl(node, "datastore", "check").stdout.endswith("is in order.\n")
    rebuilt = calicoctl(node, "datastore", "rebuild", "--node", node.nodename, "--yes")
    assert rebuilt.returncode == 0, rebuilt.stderr
    kept = [key for key, value in node.dump().items() if MARK.decode() in str(value)]
    assert RECORDS - 40 < len(kept) <= RECORDS and len(kept) + len([key for key in lost if "/h0" in key]) >= RECORDS
    other = addresses(added(node, "c2", make_pod_ns()))
    assert held not in other and held.partition("/")[0] in node.taken()
    for container in ("c1", "c2"):
        assert node.call("DEL", container).ok
    assert living.link("eth0") is None


def replace(path: Path, saved: Path) -> None:
    """As the message says."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    saved.rename(path)


def test_nothing_that_a_call_could_read(node_with_records: Node, make_pod_ns: MakeNamespace) -> None:
    """The first page: nothing is added, nothing is made, and a DEL still removes the interface."""
    node, living = node_with_records, make_pod_ns()
    added(node, "c1", living)
    path = Path(node.datastore.path)
    raw = bytearray(path.read_bytes())
    raw[100 : PAGE // 2] = bytes(PAGE // 2 - 100)
    path.write_bytes(raw)
    refused: Any = node.call("ADD", "c2", make_pod_ns().path)
    assert not refused.ok and refused.document["code"] == 105, refused
    assert "calicoctl datastore check" in refused.document["details"]
    assert node.call("DEL", "c1").ok and living.link("eth0") is None
    assert path.read_bytes()[: PAGE // 2] == raw[: PAGE // 2]
    assert calicoctl(node, "datastore", "check").returncode == 1
