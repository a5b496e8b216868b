"""What lies in a datastore, read past the product: with sqlite3, etcd's own JSON gateway, or kubectl.

Rule: this is the judge's; it knows the stored form only (block, handle, endpoint) and decodes nothing else.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = "/calico/"
BLOCKS, HANDLES = f"{ROOT}ipam/v2/assignment/", f"{ROOT}ipam/v2/handle/"
ENDPOINTS = f"{ROOT}resources/v3/projectcalico.org/workloadendpoints/"
POD = "cni.projectcalico.org/"


@dataclass
class Stored:
    """``taken``: address -> handle; ``handles``: their names; ``endpoints``: name -> container ID."""

    taken: dict[str, str] = field(default_factory=dict)
    handles: set[str] = field(default_factory=set)
    endpoints: dict[str, str] = field(default_factory=dict)

    def idle_handles(self) -> set[str]:
        """Those that hold no address."""
        return self.handles - set(self.taken.values())

    def of_containers(self) -> dict[str, Any]:
        """What only containers have; empty once all are gone."""
        kept = {
            "addresses": {a: handle for a, handle in self.taken.items() if "tunnel-addr" not in handle},
            "handles": sorted(name for name in self.handles if "tunnel-addr" not in name),
            "endpoints": sorted(self.endpoints),
        }
        return {name: value for name, value in kept.items() if value}


def _add_block(found: Stored, block: dict[str, Any]) -> None:
    first = ipaddress.ip_network(block["cidr"])[0]
    for ordinal, index in enumerate(block["allocations"]):
        if index is not None:
            found.taken[str(first + ordinal)] = block["attributes"][index].get("handle_id") or ""


def _of_pairs(pairs: Sequence[tuple[str, bytes]]) -> Stored:
    found = Stored()
    for key, value in pairs:
        if key.startswith(BLOCKS):
            _add_block(found, json.loads(value))
        elif key.startswith(HANDLES):
            found.handles.add(key.removeprefix(HANDLES))
        elif key.startswith(ENDPOINTS):
            found.endpoints[key.removeprefix(ENDPOINTS)] = json.loads(value)["spec"].get("containerID", "")
    return found


def read_file(path: Path) -> Stored:
    """Of the embedded datastore. Raises sqlite3.Error, AssertionError for a damaged one."""
    with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=20)) as connection:
        connection.text_factory = bytes
        ((answer,),) = connection.execute("PRAGMA integrity_check(1)")
        assert answer == b"ok", answer
        rows = connection.execute(
            "SELECT h.key, c.value FROM head h JOIN change c ON c.id = h.id WHERE c.value IS NOT NULL"
        )
        return _of_pairs([(key.decode(), bytes(value)) for key, value in rows])


def read_etcd(netns: str, url: str) -> Stored:
    """Of an etcd that answers at ``url`` in a network namespace."""
    answer = _ask_etcd(netns, f"{url}/v3/kv/range", {"key": _text(ROOT), "range_end": _text(ROOT[:-1] + "0")}, 20)
    pairs = [(base64.b64decode(kv["key"]).decode(), base64.b64decode(kv["value"])) for kv in answer.get("kvs", ())]
    return _of_pairs(pairs)


def read_leader(netns: str, url: str) -> str | None:
    """The name of the member that leads; None if this one cannot say."""
    try:
        leader = _ask_etcd(netns, f"{url}/v3/maintenance/status", {}, 1).get("leader", "0")
        members = _ask_etcd(netns, f"{url}/v3/cluster/member/list", {}, 1).get("members", ())
    except (subprocess.SubprocessError, ValueError):
        return None
    return next((str(each.get("name")) for each in members if each.get("ID") == leader), None)


def _ask_etcd(netns: str, url: str, question: dict[str, str], timeout_s: int) -> dict[str, Any]:
    """Raises subprocess.SubprocessError, ValueError."""
    program = (
        "import sys, urllib.request as u; r = u.Request(sys.argv[1], sys.argv[2].encode()); "
        "sys.stdout.buffer.write(u.urlopen(r, timeout=float(sys.argv[3])).read())"
    )
    argv = ["nsenter", f"--net={netns}", "python3", "-c", program, url, json.dumps(question), str(timeout_s)]
    done = subprocess.run(argv, capture_output=True, check=True, timeout=60)
    return dict(json.loads(done.stdout))


def _text(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def read_kubernetes(kubectl: str, kubeconfig: str) -> Stored:
    """Of custom resources and pods."""
    kinds = "ipamblocks.crd.projectcalico.org,ipamhandles.crd.projectcalico.org,pods"
    argv = [kubectl, f"--kubeconfig={kubeconfig}", "get", kinds, "--all-namespaces", "-o", "json"]
    found = Stored()
    for item in json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=120).stdout)["items"]:
        metadata, spec = item["metadata"], item.get("spec", {})
        if item["kind"] == "IPAMBlock" and not spec.get("deleted"):
            _add_block(found, spec)
        elif item["kind"] == "IPAMHandle" and not spec.get("deleted"):
            found.handles.add(spec["handleID"])
        elif item["kind"] == "Pod":
            annotations = metadata.get("annotations") or {}
            if annotations.get(f"{POD}podIP"):  # the container's ID may stay, as upstream leaves it
                container = annotations.get(f"{POD}containerID", "")
                found.endpoints[f"{metadata['namespace']}/{metadata['name']}"] = container
    return found
