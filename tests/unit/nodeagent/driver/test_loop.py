"""What needs records that are not read yet waits: the driver has what it had meanwhile, and the status says why."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.log import SILENT, Log
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import ListKey, ResourceKey, ResourceList
from cni_calico.model.kubernetes.nodes import KUBE_LABELS
from cni_calico.model.resources import Metadata, Node, Resource
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.driver.loop import DriverLoop
from cni_calico.nodeagent.policing.engine import PolicyEngine
from cni_calico.nodeagent.policing.loop import AskedOfEngine
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.view.snapshot import Snapshot
from tests.deadlines import SOON, until
from tests.fakes.driven import NAME, AskedDriver, write_driver
from tests.fakes.memory_store import MemoryStore
from tests.netns.policing.lab import private_settings
from tests.unit.nodeagent.fabric import FELIX, workload

WEB = "k8s default/web eth0"
PACKET = {"source": "10.9.0.1", "destination": "10.65.0.2", "protocol": 6, "sport": 4000, "dport": 80}


class SlowStore(MemoryStore):
    """Nodes are not listed before ``readable``."""

    def __init__(self) -> None:
        super().__init__()
        self.readable = threading.Event()

    def list(self, listing: ListKey, *more: Any, **others: Any) -> Any:
        if listing == ResourceList("Node"):
            assert self.readable.wait(60)
        return super().list(listing, *more, **others)

    def store(self, kind: str, record: Any) -> None:
        key = ResourceKey(kind, record.metadata.name, record.metadata.namespace)
        self.commit([Write.put(key, encode(record))], SOON)

    def allow(self, **source: Any) -> None:
        spec = {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Allow", "source": source}]}
        self.store("GlobalNetworkPolicy", Resource("GlobalNetworkPolicy", Metadata("p"), spec))


class Looping:
    """A loop in a thread of its own, as the engine has it."""

    def __init__(self, directory: Path) -> None:
        self.store, self.stopping = SlowStore(), threading.Event()
        self.store.allow(nets=["10.9.0.0/16"])
        self.store.store("WorkloadEndpoint", replace(workload("web", "caliweb", "10.65.0.2/32"), pod="web"))
        self.store.store("Profile", Resource("Profile", Metadata("kns.default"), {"labelsToApply": {"pcns.a": "b"}}))
        context = Context(private_settings(directory), self.store, Log(SILENT), lambda _: True)
        self.engine = PolicyEngine(context, "n1")
        felix = replace(FELIX, internal_driver=False, dataplane_driver=NAME)
        self.asked = AskedOfEngine(felix, Tunnels())
        self.loop = DriverLoop(context, "n1", {}, self.asked, self.engine._reading.incoming(), self.engine)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopping.is_set():
            self.loop.step(self.asked, self.stopping)
        self.loop.stop()

    def end(self) -> None:
        self.store.readable.set()
        self.stopping.set()
        self.loop.wake()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def looping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Looping, AskedDriver]]:
    answers = write_driver(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found, driver = Looping(tmp_path), AskedDriver(answers)
    try:
        yield found, driver
    finally:
        driver.close()
        found.end()


def test_what_is_not_read_yet_is_waited_for(looping: tuple[Looping, AskedDriver]) -> None:
    found, driver = looping

    def allowed(source: str) -> bool:
        [verdict] = driver.ask(judge=[["workload", WEB, "own", "ingress", {**PACKET, "source": source}]])
        return bool(verdict)

    assert driver.ask(state=1)["read"] == 0  # nothing before the parameters and the cluster are known
    found.loop.use(Snapshot("n1", felix_default={"interfacePrefix": "cali"}))
    until(lambda: "in_sync" in driver.ask(state=1)["others"], "it knows all")
    state = driver.ask(state=1)
    assert state["first"] == "config_update" and state["config"] == {"InterfacePrefix": "cali"}
    assert state["namespaces"] == {"default": {"a": "b"}} and not state["wrong"]
    assert (allowed("10.9.0.1"), allowed("10.9.1.1"), allowed("10.8.0.1")) == (True, True, False)

    annotations = {KUBE_LABELS: json.dumps({"rack": "1"})}
    address = {"address": "10.8.0.1", "type": "InternalIP"}
    found.store.store("Node", Node(Metadata("n2", annotations=annotations), addresses=(address,)))
    found.store.allow(nodeSelector="rack == '1'")
    until(lambda: found.engine.standing.failing, "it waits")
    assert "Node not read yet" in found.engine.standing.failing and found.engine.standing.in_force
    found.store.store("Profile", Resource("Profile", Metadata("kns.other"), {"labelsToApply": {}}))
    assert (allowed("10.9.0.1"), allowed("10.8.0.1")) == (True, False)  # as before
    found.store.readable.set()
    until(lambda: allowed("10.8.0.1"), "it is read")
    until(lambda: not found.engine.standing.failing, "nothing waits")
    state = driver.ask(state=1)
    assert not allowed("10.9.0.1") and state["namespaces"].keys() == {"default", "other"} and not state["wrong"]
