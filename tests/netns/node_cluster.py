"""A cluster of nodes in two subnets: n1 and n2 in one, n3 in another behind a router that knows no pod's address.

One etcd serves all of them, in the router's namespace. Given a directory of frozen executables, the nodes and the CNI
plugin run from there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Record
from tests.contract.etcd_process import Member
from tests.e2e.forks import forks_in
from tests.netns.agents import EtcdStore
from tests.netns.bird.cluster import Lab
from tests.netns.namespaces import Namespace
from tests.netns.nodes import Node, Pod, until_all_reach_all

SUBNETS = {"n1": "0", "n2": "0", "n3": "1"}
ENVIRON = {
    "IP6": "autodetect",
    "NO_DEFAULT_POOLS": "true",
    "CALICO_IPV4POOL_CIDR": "",
    "CALICO_IPV4POOL_VXLAN": "",
    "CALICO_IPV6POOL_CIDR": "",
    "FELIX_HEALTHENABLED": "false",
    "FELIX_PROMETHEUSMETRICSENABLED": "false",
    "AUTODETECT_POLL_INTERVAL": "1s",
}


class Cluster:
    """The nodes, and pods on them by name ("<node>-<label>")."""

    def __init__(
        self, lab: Lab, directory: Path, *, ipv6: bool, environ: dict[str, str], bin_dir: Path | None, tries: int
    ) -> None:
        self.lab = lab
        self.tries = tries
        self.bin_dir = bin_dir
        self.ipv6 = ipv6
        self.environ = {**ENVIRON, **environ}
        self.directory = directory
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        router = self.router = lab.namespace("router")
        router.set_sysctl("ipv4/ip_forward", "1")
        router.set_sysctl("ipv6/conf/all/forwarding", "1")
        for subnet in ("0", "1"):
            lab.plug(router, f"eth{subnet}", subnet, f"10.0.{subnet}.254/24", f"fd00:{subnet}::254/64")
        self.etcd = self._start_etcd(router, directory)
        self.store = EtcdStore(self.etcd.client_url, lab.stack.enter_context(forks_in(router)))

    def _start_etcd(self, router: Namespace, directory: Path) -> Member:
        prefix = ("nsenter", f"--net={router.path}")
        etcd = Member("etcd", "http://10.0.0.254:2379", "http://127.0.0.1:2380", directory, prefix=prefix)
        etcd.start(f"etcd={etcd.peer_url}")
        self.lab.stack.callback(etcd.stop)
        etcd.wait_serving()
        return etcd

    def start(self, name: str, subnet: str, number: int) -> Node:
        """Another node, started; not ready yet."""
        ns = self.lab.namespace(name)
        self.lab.plug(ns, "eth0", subnet, f"10.0.{subnet}.{number}/24", f"fd00:{subnet}::{number}/64")
        ns.do("route", "add", "default", "via", f"10.0.{subnet}.254")
        ns.do("-6", "route", "add", "default", "via", f"fd00:{subnet}::254")
        node = Node(ns, name, self.directory / name, self.store, more=dict(self.environ), bin_dir=self.bin_dir)
        self.nodes[name] = node.run()
        self.lab.stack.callback(node.end)
        return node

    def remove(self, name: str) -> Node:
        """End a node with its pods and record."""
        node = self.nodes.pop(name)
        for pod in [pod for pod in self.pods if pod.startswith(f"{name}-")]:
            node.cni("DEL", self.pods.pop(pod))
        node.stop()
        self.store.remove(ResourceKey("Node", name))
        return node

    def rename(self, name: str, other: str) -> Node:
        """The same host as another node: its pods are not the new node's."""
        renamed = replace(self.remove(name), name=other, process=None)
        (renamed.root / "lib" / "nodename").unlink()
        self.nodes[other] = renamed.run()
        self.lab.stack.callback(renamed.end)
        return renamed

    def move(self, name: str, subnet: str, number: int, other: int) -> None:
        """Give a running node another address of each family."""
        ns = self.nodes[name].ns
        ns.do("addr", "del", f"10.0.{subnet}.{number}/24", "dev", "eth0")
        ns.do("addr", "add", f"10.0.{subnet}.{other}/24", "dev", "eth0")
        ns.do("route", "replace", "default", "via", f"10.0.{subnet}.254")
        if self.ipv6:
            ns.do("addr", "del", f"fd00:{subnet}::{number}/64", "dev", "eth0")
            ns.do("addr", "add", f"fd00:{subnet}::{other}/64", "dev", "eth0", "nodad")
            ns.do("-6", "route", "replace", "default", "via", f"fd00:{subnet}::254")

    def add_pod(self, node: str, label: str) -> Pod:
        pod = Pod(self.lab.namespace(f"{node}{label}"), f"{node}{label}-{os.getpid()}", ipv6=self.ipv6)
        self.pods[f"{node}-{label}"] = self.nodes[node].add(pod, tries=self.tries)
        return pod

    def until_all_reach_all(self, timeout_s: float = 30.0) -> None:
        until_all_reach_all(list(self.pods.values()), timeout_s)


def start_cluster(
    lab: Lab,
    directory: Path,
    records: Iterable[Record],
    *,
    ipv6: bool = True,
    bin_dir: Path | None = None,
    tries: int = 1,
    **environ: str,
) -> Cluster:
    """Three nodes that are ready, on these pools and other records, one pod ("<node>-a") on each; an ADD is tried up to
    ``tries`` times, as a kubelet does.
    """
    made = Cluster(lab, directory, ipv6=ipv6, environ=environ, bin_dir=bin_dir, tries=tries)
    made.store.put(*records)
    for number, (name, subnet) in enumerate(SUBNETS.items(), 1):
        made.start(name, subnet, number)
    lab.stack.callback(lambda: [node.ask_to_end() for node in made.nodes.values()])
    for node in made.nodes.values():
        node.until_ready()
    for name in SUBNETS:
        made.add_pod(name, "a")
    return made
