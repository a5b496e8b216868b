"""Where a run takes place: one to three hosts on one datastore, every host and every member of etcd in a network
namespace of its own, joined by a bridge.

Rule: everything is made here and gone at the end; what fails is decided elsewhere (acts.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cni_calico.errors import DatastoreError
from cni_calico.model.access import DatastoreConfig, KubernetesAccess
from tests.contract.etcd_process import Member
from tests.e2e.host import Node
from tests.e2e.kubernetes.cluster import Cluster, running_cluster
from tests.e2e.kubernetes.node import KubeNode, Relay
from tests.faults import records
from tests.faults.clock import Clock
from tests.netns.namespaces import Namespace, host_namespace, namespace

DISK_MB = 96
ATTEMPTS = 5
GRACE_S = 120  # longer than any call, and short enough for a run
NETWORK = "10.99.0"
PODS = "space"


@dataclass
class Host:
    """A host: its node, the disk that state, locks and the embedded datastore lie on, and its place on the bridge."""

    node: Node
    disk: Path
    address: str
    server: Any = None  # servers.Server, when there is one
    image: Path | None = None  # of the disk, when it is a block device


@dataclass
class Lab:
    """``members`` of etcd with the namespace of each; ``kube``: the API server, with the relays of its hosts."""

    root: Path
    store: str
    clock: Clock
    hosts: list[Host] = field(default_factory=list)
    members: list[tuple[Member, Namespace]] = field(default_factory=list)
    kube: Cluster | None = None
    bundle: Path | None = None
    controllers: Any = None  # servers.Controllers, where they are the janitor

    def start_member(self, index: int) -> None:
        member, _ = self.members[index]
        initial = ",".join(f"{each.name}={each.peer_url}" for each, _ in self.members)
        member.start(initial, "existing")

    def stored(self) -> records.Stored:
        """What lies in the datastore now, read past the product."""
        if self.kube is not None:
            return records.read_kubernetes(self.kube.kubectl_path, self.kube.kubeconfig())
        if self.members:
            member, ns = self.members[0]
            return records.read_etcd(ns.path, member.client_url)
        return records.read_file(Path(self.hosts[0].node.datastore.path))

    def leader(self) -> int | None:
        """Which member of etcd leads now, as one of them says; None if none answers."""
        for member, ns in self.members:
            told = records.read_leader(ns.path, member.client_url)
            if told is None:
                continue
            for index, (each, _) in enumerate(self.members):
                if each.name == told:
                    return index
        return None

    def heal(self) -> None:
        """Everything that acts of the run may have left behind is put right."""
        for host in self.hosts:
            host.node.host.run("nft", "delete table inet faults", check=False)
        for index, (member, ns) in enumerate(self.members):
            ns.run("nft", "delete table inet faults", check=False)
            member.signal(signal.SIGCONT)
            if member.process is None or member.process.poll() is not None:
                self.start_member(index)
        for member, _ in self.members:
            member.wait_serving()
        if self.kube is not None:
            self.kube.processes["etcd"].send_signal(signal.SIGCONT)
            self.kube.stop("kube-apiserver")  # one that another thread has started ends with that thread
            self.kube.start_apiserver()


@contextmanager
def lab(store: str, hosts: int, members: int, *, block_device: bool = False) -> Iterator[Lab]:
    """``store``: local, etcd or kubernetes."""
    with ExitStack() as held:
        root = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="cct-faults-")))
        made = Lab(root, store, Clock(root))
        bridge = held.enter_context(namespace("wire"))
        bridge.do("link", "add", "br0", "type", "bridge")
        bridge.do("link", "set", "br0", "up")
        if store == "etcd":
            _start_etcd(made, held, bridge, members)
        elif store == "kubernetes":
            made.kube = held.enter_context(running_cluster())
            made.kube.apply_definitions()
            made.kube.ensure_namespace(PODS)
        for index in range(hosts):
            made.hosts.append(_host(made, held, bridge, index, block_device=block_device))
        _until_it_succeeds(lambda: _configure(made.hosts[0].node))
        yield made


def _configure(node: Node) -> None:
    node.apply_pools()
    if isinstance(node, KubeNode):  # no controller serves metrics: other runs may have the port
        spec = {"controllers": {"node": {"leakGracePeriod": f"{GRACE_S}s"}}, "prometheusMetricsPort": 0}
        node.apply("KubeControllersConfiguration", "default", spec)


def _until_it_succeeds(act: Callable[[], None]) -> None:
    """The machine may be busy with other things while everything starts."""
    for _ in range(ATTEMPTS - 1):
        try:
            return act()
        except (subprocess.SubprocessError, DatastoreError):
            continue
    return act()


def _join(ns: Namespace, bridge: Namespace, number: int) -> str:
    """The namespace's address on the bridge."""
    bridge.do("link", "add", f"port{number}", "type", "veth", "peer", "name", "lab0", "netns", ns.name)
    bridge.do("link", "set", f"port{number}", "master", "br0", "up")
    ns.do("addr", "add", f"{NETWORK}.{number}/24", "dev", "lab0")
    ns.do("link", "set", "lab0", "up")
    return f"{NETWORK}.{number}"


def _start_etcd(made: Lab, held: ExitStack, bridge: Namespace, count: int) -> None:
    for number in range(1, count + 1):
        ns = held.enter_context(namespace(f"etcd{number}"))
        address = _join(ns, bridge, number)
        prefix = ("nsenter", f"--net={ns.path}")
        member = Member(f"m{number}", f"http://{address}:2379", f"http://{address}:2380", made.root, prefix=prefix)
        made.members.append((member, ns))
    initial = ",".join(f"{member.name}={member.peer_url}" for member, _ in made.members)
    for member, _ in made.members:
        held.callback(member.stop)
        member.start(initial)
    for member, _ in made.members:
        member.wait_serving()


def _host(made: Lab, held: ExitStack, bridge: Namespace, index: int, *, block_device: bool) -> Host:
    ns = held.enter_context(host_namespace())
    address = _join(ns, bridge, 10 + index)
    root = made.root / f"host{index}"
    disk = root / "disk"
    disk.mkdir(parents=True)
    image = root / "disk.img" if block_device else None
    _mount(disk, image)
    held.callback(subprocess.run, ["umount", "-l", str(disk)], capture_output=True)
    for name in ("run", "state"):
        (disk / name).mkdir()
        (root / name).symlink_to(disk / name)
    node = _node(made, held, ns, root, disk, index)
    node.timeout_s = 150
    node.overrides |= {"log_level": "error", "log_file_max_count": 2}  # the traces of defects
    return Host(node, disk, address, image=image)


def _mount(disk: Path, image: Path | None) -> None:
    if image is None:
        options = f"size={DISK_MB}m,nr_inodes=4096"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(disk)], check=True)
        return
    with image.open("wb") as f:
        f.truncate(DISK_MB * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)


def _node(made: Lab, held: ExitStack, ns: Namespace, root: Path, disk: Path, index: int) -> Node:
    name = f"node{index + 1}"
    if made.kube is not None:
        relay = Relay(ns, made.kube.port)
        held.callback(relay.close)
        made.kube.create_node(name, spec={"podCIDR": f"10.244.{index + 1}.0/24"})
        config = DatastoreConfig("kubernetes", kubernetes=KubernetesAccess(kubeconfig=made.kube.kubeconfig()))
        return KubeNode(ns, root, config, nodename=name, kube=made.kube, relay=relay, namespace=PODS)
    if made.members:
        endpoints = tuple(member.client_url for member, _ in made.members)
        return Node(ns, root, DatastoreConfig("etcdv3", etcd_endpoints=endpoints), nodename=name)
    return Node(ns, root, DatastoreConfig("local", path=str(disk / "datastore.db")), nodename=name)


def agents_environ(host: Host) -> dict[str, str]:
    """What calico-node is told, beside its directories."""
    node = host.node
    own = {
        "NODENAME": node.nodename,
        "IP": f"{host.address}/24",
        "CALICO_NETWORKING_BACKEND": "none",
        "CALICO_IPV4POOL_CIDR": "10.65.0.0/16",
        "CALICO_IPV6POOL_CIDR": "none",
        "CALICO_LOG_DIR": f"{node.root}/log",
        "CALICO_NODENAME_FILE": f"{node.root}/state/nodename",
        "CALICO_BIRD_CONFIG_DIR": f"{node.root}/bird",
        "CALICO_DISABLE_FILE_LOGGING": "true",
    }
    if isinstance(node, KubeNode):
        return {**own, "DATASTORE_TYPE": "kubernetes", "KUBECONFIG": node.kube.kubeconfig()}
    if node.datastore.type == "etcdv3":
        return {**own, "DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": ",".join(node.datastore.etcd_endpoints)}
    return {**own, "DATASTORE_TYPE": "local", "DATASTORE_PATH": node.datastore.path}


def environ_of(host: Host) -> dict[str, str]:
    """Of every process on a host that keeps running."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**keep, "CALICO_RUN_DIR": f"{host.node.root}/run", "CALICO_STATE_DIR": f"{host.node.root}/state"}
