"""A start-up in a namespace: hosts with network cards, and ``-startup`` run there on a local datastore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.model.host import TunnelDevice
from cni_calico.model.keys import EverythingList, Key, etcd_path
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.kubernetes import KubernetesFacts
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.startup.run import run_startup
from tests.fakes.notes import Notes
from tests.netns.namespaces import Namespace


class Kubernetes:
    """A Kubernetes node as start-up sees it."""

    def __init__(self, facts: KubernetesFacts) -> None:
        self.facts = facts

    def read_facts(self, deadline: Deadline) -> KubernetesFacts:
        return self.facts

    def set_network_unavailable(self, unavailable: bool, deadline: Deadline) -> None:
        raise AssertionError("start-up does not set the condition")


@dataclass
class Outcome:
    node: str
    changed: tuple[str, ...]
    doubts: tuple[str, ...]
    log: list[str]


@dataclass
class Host:
    """A host's files below ``root``, sharing ``datastore`` with the others."""

    ns: Namespace
    root: Path
    datastore: Path
    facts: KubernetesFacts | None = None
    environ: dict[str, str] = field(default_factory=dict)

    def settings(self, environ: Mapping[str, str]) -> dict[str, str]:
        directories = {
            "CALICO_RUN_DIR": f"{self.root}/run",
            "CALICO_STATE_DIR": f"{self.root}/lib",
            "CALICO_LOG_DIR": f"{self.root}/log",
            "CALICO_NODENAME_FILE": f"{self.root}/lib/nodename",
        }
        return {**directories, **self.environ, **environ}

    def start(self, fault: str = "", **environ: str) -> Outcome:
        """``calico-node -startup`` with these variables; raises what it raises."""
        kubernetes = None if self.facts is None else Kubernetes(self.facts)
        outcome: Outcome = self.ns.call(_start, str(self.datastore), self.settings(environ), kubernetes, fault=fault)
        return outcome

    @property
    def nodename_file(self) -> Path:
        return self.root / "lib" / "nodename"

    def stored(self) -> dict[str, Any]:
        """Everything in the datastore by key, without the part that all have in common."""
        return read_all(self.datastore)

    def node(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = self.stored()[f"nodes/{name}"]
        return document

    def put(self, key: Key, document: Mapping[str, Any]) -> None:
        from cni_calico.datastore.interface import Write

        store = LocalStore(str(self.datastore))
        store.commit((Write.put(key, document),), Deadline.after(10))
        store.close()


def read_all(datastore: Path) -> dict[str, Any]:
    if not datastore.exists():
        return {}
    store = LocalStore(str(datastore))
    items = store.list(EverythingList(), Deadline.after(10)).items
    store.close()
    return {etcd_path(item.key).removeprefix("/calico/resources/v3/projectcalico.org/"): item.value for item in items}


def _start(datastore: str, environ: dict[str, str], kubernetes: Kubernetes | None) -> Outcome:
    log = Notes()
    store = LocalStore(datastore)
    context = Context(parse_settings(environ), store, log, wait=lambda _: True, kubernetes=kubernetes)
    started = run_startup(context)
    store.close()
    return Outcome(started.node, started.changed, tuple(doubt.text for doubt in started.doubts), log.texts)


VXLAN_DEVICE = TunnelDevice(
    "vxlan.calico",
    "vxlan",
    1450,
    ip_address("10.65.1.0"),
    parent="eth0",
    local=ip_address("10.0.0.1"),
    vni=4096,
    port=4789,
    mac="66:00:00:00:00:01",
)


def add_card(ns: Namespace, name: str, *addresses: str) -> None:
    """A network card with a wire: a veth whose other end is up in the same namespace."""
    ns.do("link", "add", name, "type", "veth", "peer", "name", f"veth-{name}")
    ns.do("link", "set", f"veth-{name}", "up")
    ns.do("link", "set", name, "up")
    for address in addresses:
        ns.do("addr", "add", address, "dev", name, *(("nodad",) if ":" in address else ()))


def internal_ips(*addresses: str) -> KubernetesFacts:
    return KubernetesFacts(internal_ips=tuple(map(ip_address, addresses)))
