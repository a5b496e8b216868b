"""What a person sees of encryption between two nodes: ``calicoctl encryption`` and the metrics."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.netns.encrypted import EncryptedPair, encrypted_pair
from tests.netns.namespaces import Namespace
from tests.unit.nodeagent.fabric import pool

pytestmark = [
    *(pytest.mark.netns, pytest.mark.stock),
    pytest.mark.once("tests/netns/encryption/test_pair.py"),  # the kernel's part: keys, handshakes, another key
]
METRICS = 19091


def shown(pair: EncryptedPair, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pair.nodes[name].calicoctl("encryption", "status", "-o", "json").stdout)
    return found


def _fetched() -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{METRICS}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def metrics(ns: Namespace) -> dict[str, float]:
    text = ns.call(_fetched)
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def test_who_encrypts_for_whom_is_seen(tmp_path: Path) -> None:
    more = {"FELIX_PROMETHEUSMETRICSENABLED": "true", "FELIX_PROMETHEUSMETRICSPORT": str(METRICS)}
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),), **more) as pair:
        node = pair.nodes["n1"]
        refused = node.calicoctl("encryption", "strict", "on", check=False)
        assert refused.returncode == 1 and "it is not enabled" in refused.stderr
        assert "not enabled" in node.calicoctl("encryption", "status").stdout
        assert not any("encryption" in name or "wireguard" in name for name in metrics(node.ns))
        pair.enable()
        pair.until_encrypted()
        keys = pair.told_keys()
        until(lambda: pair.shaken("n1", keys["n2"]), "a handshake", pause_s=0.2)

        def reported() -> bool:
            (interface,) = shown(pair, "n1")["interfaces"] or [{"peers": []}]
            return [(peer["node"], peer["state"]) for peer in interface["peers"]] == [("n2", "encrypted")]

        until(reported, "the agent says who its peers are", pause_s=0.2)
        said = shown(pair, "n1")
        assert {one["node"]: one["key"] for one in said["nodes"]} == keys and said["families"] == [4]
        assert not any(one["problem"] for one in said["nodes"]) and said["here"] == "n1"
        (interface,) = said["interfaces"]
        assert interface["device"] == pair.devices["n1"] and interface["peers"][0]["handshake_s"] > 0
        assert interface["key"] == keys["n1"]
        assert "n2" in node.calicoctl("encryption", "status", "n2").stdout
        found = metrics(node.ns)
        assert found['calico_encryption_peers{family="4",state="encrypted"}'] == 1
        assert found['calico_encryption_in_force{family="4"}'] == 1
        assert any(name.startswith("wireguard_latest_handshake_seconds{") for name in found)
        assert any(keys["n2"] in name and name.startswith("wireguard_bytes_sent{") for name in found)

        assert "n1 has a new key" in node.calicoctl("encryption", "rotate", "n1").stdout
        assert pair.told_keys()["n1"] != keys["n1"] and pair.told_keys()["n2"] == keys["n2"]
        assert pair.shaken("n2", pair.told_keys()["n1"])  # n2 had followed before the command ended

        assert "mandatory now" in node.calicoctl("encryption", "strict", "on").stdout
        until(lambda: shown(pair, "n1")["interfaces"][0]["mandatory"], "the agent has made it mandatory", pause_s=0.2)
        assert "calico_encryption_guard_drops_total" in metrics(node.ns)
        pair.say_key("n2", "")
        until(
            lambda: node.calicoctl("encryption", "status", check=False).returncode == 0,
            "n2 tells its key again",
            pause_s=0.2,
        )
        assert "not mandatory any more" in node.calicoctl("encryption", "strict", "off").stdout
