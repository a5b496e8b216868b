"""What a large cluster costs one node: start, memory, one more node, one more block, through a real etcd.

    python tests/bench/agent_bgp.py [NODES [PODS]]          needs root, BIRD 2 and etcd; prints a table

Two nodes are real (``calico-node run`` in a namespace each), the others are records: Node, block, affinity, endpoints.
Times are from the write to what can be seen in the kernel or in BIRD's configuration.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import AffinityKey, BlockKey, ResourceKey
from cni_calico.model.resources import Affinity, Attribute, Block, Metadata, WorkloadEndpoint
from tests.contract.etcd_process import Member, free_ports
from tests.deadlines import until
from tests.netns.agents import Store, key_of
from tests.netns.bird.cluster import Lab, make_lab
from tests.netns.nodes import Node
from tests.unit.nodeagent.fabric import node, pool

REAL = ("n0", "n1")
HERTZ = os.sysconf("SC_CLK_TCK")


def wait(condition: Callable[[], Any], what: str) -> float:
    """Seconds until it holds."""
    begun = time.perf_counter()
    until(condition, what, 120)
    return time.perf_counter() - begun


def block_of(number: int) -> Any:
    return ip_network(f"10.{64 + number // 1024}.{number // 4 % 256}.{number % 4 * 64}/26")


def block_writes(name: str, number: int, used: int) -> Iterator[Write]:
    cidr = block_of(number)
    allocations = (*[0] * used, *[None] * (64 - used))
    attributes = (Attribute(f"k8s-pod-network.{name}", {"node": name}),)
    yield Write.put(
        BlockKey(cidr), encode(Block(cidr, f"host:{name}", allocations, tuple(range(used, 64)), attributes))
    )
    yield Write.put(AffinityKey(name, cidr), encode(Affinity("confirmed")))


def node_write(number: int) -> Write:
    address = ip_interface(f"172.31.{number // 250}.{number % 250 + 1}/16")
    record = node(f"n{number}", str(address))
    return Write.put(key_of(record), encode(record))


def endpoint_write(name: str, number: int, pod: int) -> Write:
    address = ip_address(int(block_of(number).network_address) + pod)
    record = WorkloadEndpoint(
        Metadata(f"{name}-k8s-pod{pod}-eth0", "default"),
        "k8s",
        name,
        "eth0",
        f"cali{number:05x}{pod:05x}",
        pod=f"pod{pod}",
        ip_networks=(ip_network(address),),
    )
    return Write.put(ResourceKey("WorkloadEndpoint", record.metadata.name, "default"), encode(record))


def fill(store: EtcdStore, nodes: int, pods: int) -> None:
    each = min(64, pods // nodes)
    writes = [encoded_pool()]
    for number in range(len(REAL), nodes):
        name = f"n{number}"
        writes += [node_write(number), *block_writes(name, number, each)]
        writes += [endpoint_write(name, number, pod) for pod in range(each)]
    for start in range(0, len(writes), 50):
        store.commit(writes[start : start + 50], Deadline.after(30))


def encoded_pool() -> Write:
    record = pool("10.64.0.0/10")
    return Write.put(key_of(record), encode(record))


def start_node(lab: Lab, directory: Path, number: int, endpoint: str) -> Node:
    ns = lab.namespace(f"n{number}")
    lab.plug(ns, "eth0", "0", f"172.31.0.{number + 1}/16")
    lab.plug(ns, "eth1", "etcd", f"192.0.2.{number + 1}/24")
    more = {
        "DATASTORE_TYPE": "etcdv3",
        "ETCD_ENDPOINTS": endpoint,
        "NO_DEFAULT_POOLS": "true",
        "CALICO_IPV4POOL_CIDR": "",
        "CALICO_IPV4POOL_VXLAN": "",
        "CALICO_IPV6POOL_CIDR": "",
        "CALICO_NETWORKING_BACKEND": "bird",
        "IP_AUTODETECTION_METHOD": "interface=eth0",
        "FELIX_HEALTHENABLED": "false",
        "FELIX_PROMETHEUSMETRICSENABLED": "false",
        "FELIX_ROUTEREFRESHINTERVAL": "90",
    }
    made = Node(ns, f"n{number}", directory / f"n{number}", Store(Path("unused")), more=more)
    lab.stack.callback(made.end)
    return made


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def memory_mb(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def config(made: Node) -> str:
    try:
        return (made.root / "bird" / "bird.cfg").read_text()
    except FileNotFoundError:
        return ""


def has_route(made: Node, cidr: Any) -> bool:
    return bool(made.ns.ip("-4", "route", "show", str(cidr), "proto", "bird"))


def measure(nodes: int, pods: int) -> None:
    with tempfile.TemporaryDirectory() as name, make_lab(Path(name)) as lab:
        directory = Path(name)
        (port, peer_port) = free_ports(2)
        host = lab.namespace("etcd")
        host.do("link", "set", "lo", "up")
        lab.plug(host, "eth0", "etcd", "192.0.2.254/24")
        member = Member(
            "bench",
            f"http://192.0.2.254:{port}",
            f"http://127.0.0.1:{peer_port}",
            directory,
            prefix=["nsenter", f"--net={host.path}"],
        )
        member.start(f"bench=http://127.0.0.1:{peer_port}")
        lab.stack.callback(member.stop)
        member.wait_serving()
        run_in(lab, directory, member, nodes, pods)


def run_in(lab: Lab, directory: Path, member: Member, nodes: int, pods: int) -> None:
    made = [start_node(lab, directory, number, member.client_url) for number in range(2)]
    # this process talks to etcd from a namespace that reaches it
    from cni_calico.kernel import netns

    fd = os.open(made[0].ns.path, os.O_RDONLY)
    lab.stack.callback(os.close, fd)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    netns.enter(fd)
    store = EtcdStore(EtcdConfig(endpoints=(member.client_url,)))
    lab.stack.callback(netns.enter, home)
    lab.stack.callback(store.close)
    fill(store, nodes, pods)
    made[1].run().until_ready()
    store.commit([*block_writes("n1", 1, 10)], Deadline.after(10))
    wait(lambda: has_route(made[1], block_of(1)), "the other node's own block")
    begun = time.perf_counter()
    made[0].run()
    wait(lambda: made[0].status().get("synced"), "the data plane")
    synced = time.perf_counter() - begun
    wait(lambda: config(made[0]).count("protocol bgp Mesh_") == nodes - 1, "all peers")
    peers = time.perf_counter() - begun
    wait(lambda: has_route(made[0], block_of(1)), "the other node's block")
    routed = time.perf_counter() - begun
    agent = made[0].status()["pid"]
    bird = int((made[0].root / "run" / "bird.pid").read_text())
    print(f"{nodes} nodes, {pods} pods: start of calico-node run (start-up, servers, agent, BIRD on 2 busy cores)")
    print(f"  data plane synced {synced:.1f} s, BIRD has all peers {peers:.1f} s, a remote block routed {routed:.1f} s")
    print(f"  agent: {cpu_s(agent):.1f} s of CPU, {memory_mb(agent):.0f} MB; BIRD: {memory_mb(bird):.0f} MB")
    new_blocks, cpu = [], cpu_s(agent)
    for i in range(9):
        number = nodes + 10 + i
        store.commit([*block_writes("n1", number, 1)], Deadline.after(10))
        new_blocks.append(wait(partial(has_route, made[0], block_of(number)), "the new block"))
    block_cpu = (cpu_s(agent) - cpu) / 9
    new_nodes, cpu = [], cpu_s(agent)
    for i in range(9):
        store.commit([node_write(nodes + i)], Deadline.after(10))
        sessions = nodes + i
        new_nodes.append(wait(lambda n=sessions: config(made[0]).count("protocol bgp Mesh_") == n, "the new node"))
    node_cpu = (cpu_s(agent) - cpu) / 9
    for what, times, used in (("block", new_blocks, block_cpu), ("node", new_nodes, node_cpu)):
        median, worst = statistics.median(times) * 1000, max(times) * 1000
        print(f"  a new {what}: {median:.0f} ms (worst {worst:.0f} ms), {used * 1000:.0f} ms of the agent's CPU")


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    measure(*(arguments or [200, 10000]))
