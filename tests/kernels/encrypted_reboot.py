"""In a machine: two nodes that must encrypt, before its power goes and after that.

Rule: the second part begins as a host does: nothing of the first one's namespaces, interfaces, tables and processes is
there, its files are. A runtime asks for the pod's network before the agent runs, and goes on asking.

``python -m tests.kernels.encrypted_reboot before|after DIRECTORY``; the first part ends with the machine. The second
one writes /results/said.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deadlines import until
from tests.netns.agents import Store
from tests.netns.bird.cluster import make_lab
from tests.netns.encrypted import EncryptedPair, encrypted_pair
from tests.netns.nodes import Pod
from tests.unit.nodeagent.fabric import pool

DEVICE = "wireguard.cali"
ENVIRON = {"CALICO_WIREGUARD_STRICT": "true", "FELIX_WIREGUARDINTERFACENAME": DEVICE}
REFUSED = "encryption between nodes is mandatory"


def before(directory: Path) -> None:
    """Until the power goes: both have sent, and nothing was readable."""
    with encrypted_pair(directory, (pool("10.65.0.0/16", "Always"),), **ENVIRON) as pair:
        pair.devices = dict.fromkeys(pair.nodes, DEVICE)
        pair.enable()
        stream = pair.stream()
        stream.arrive(50)
        assert stream.readable() == 0
        kept = {
            "keys": pair.told_keys(),
            "containers": {name: pod.container for name, pod in pair.pods.items()},
            "addresses": {name: pod.addresses for name, pod in pair.pods.items()},
        }
        (directory / "went").write_text(json.dumps(kept))
        os.sync()
        Path("/proc/sysrq-trigger").write_text("b")
        threading.Event().wait(60)


@contextmanager
def asked_all_the_time(pair: EncryptedPair, name: str, asked: dict[str, Any]) -> Iterator[None]:
    """A runtime that wants a pod's network, from now on until it has it."""
    ending = threading.Event()

    def ask() -> None:
        while not ending.is_set():
            try:
                pair.pods[name] = pair.add_pod(name, f"again{asked['refused']}")
                asked["guard"] = guard_stands(pair, name)
                return
            except RuntimeError as e:
                asked["others"] += REFUSED not in str(e)
                asked["last"] = str(e)
                asked["refused"] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
        thread.join(300)
    finally:
        ending.set()
        thread.join()


def guard_stands(pair: EncryptedPair, name: str) -> bool:
    return pair.nodes[name].ns.run("nft", "list", "table", "inet", "calico-encryption", check=False).returncode == 0


def after(directory: Path) -> None:
    kept = json.loads((directory / "went").read_text())
    with make_lab(directory) as lab:
        pair = EncryptedPair(lab, Store(directory / "store.db"), directory, ENVIRON)
        for name in ("n1", "n2"):
            pair.place(name)
        pair.devices = dict.fromkeys(pair.nodes, DEVICE)
        for name, node in pair.nodes.items():
            gone = Pod(lab.namespace(f"{name}gone"), kept["containers"][name])
            node.cni("DEL", gone)  # as a runtime does with what it finds
            assert not guard_stands(pair, name) and not node.ns.ip("link", "show", "type", "wireguard")
        second, asked = pair.nodes["n2"], {"refused": 0, "others": 0, "guard": False, "last": ""}
        second.run().until_applied()
        pair.pods["n2"] = pair.add_pod("n2", "again")
        pair.pods["n1"] = Pod(lab.namespace("nobody"), "nobody", addresses=kept["addresses"]["n1"])
        early = pair.stream()  # to where the first node's pod was, and nobody is yet
        with asked_all_the_time(pair, "n1", asked):
            until(lambda: asked["refused"] >= 3, "a pod was refused", 300)
            assert not guard_stands(pair, "n1")
            pair.nodes["n1"].run()
        assert asked["guard"] and not asked["others"], asked
        began = time.monotonic()
        stream = pair.stream(port=7778)
        stream.arrive(50)
        took = time.monotonic() - began
        lost = stream.outstanding()
        until(lambda: early.sent[1] > 100, "the other node's pod has sent")
        for one in (early, stream):
            one.stop()
            assert one.readable() == 0
        keys = pair.told_keys()
        assert keys.keys() == kept["keys"].keys() and not set(keys.values()) & set(kept["keys"].values())
        said = (
            f"{asked['refused']} ADDs refused before the guard stood; from the first pod on "
            f"{sum(stream.sent)}/{lost}/0, both ways within {took:.0f} s; meanwhile to where it was {early.sent[1]}/-/0"
        )
        Path("/results/said").write_text(said)


if __name__ == "__main__":
    {"before": before, "after": after}[sys.argv[1]](Path(sys.argv[2]))
