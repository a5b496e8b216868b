"""Snapshots for the tests of the agent's pure parts: three nodes, blocks, a workload."""

from ipaddress import ip_address, ip_interface, ip_network

from cni_calico.model.host import HostInterface
from cni_calico.model.resources import IPPool, Metadata, Node, WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.view.snapshot import BlockRoute, Snapshot

FELIX = FelixSettings()


def node(name, v4=None, v6=None, vtep=None, vtep6=None, ipip=None, **more):
    return Node(
        Metadata(name),
        ipv4=ip_interface(v4) if v4 else None,
        ipv6=ip_interface(v6) if v6 else None,
        ipv4_vxlan_tunnel=ip_address(vtep) if vtep else None,
        ipv6_vxlan_tunnel=ip_address(vtep6) if vtep6 else None,
        ipv4_ipip_tunnel=ip_address(ipip) if ipip else None,
        **more,
    )


def pool(cidr, vxlan="Never", ipip="Never", **more):
    network = ip_network(cidr)
    size = 26 if network.version == 4 else 122
    name = cidr.replace("/", "-").replace(":", "-").strip("-")
    return IPPool(Metadata(name), network, size, vxlan_mode=vxlan, ipip_mode=ipip, **more)


def block(cidr, owner, **lent):
    return BlockRoute(ip_network(cidr), owner, {ip_address(address): holder for holder, address in lent.items()})


def workload(name, interface, *networks, node="n1"):
    metadata = Metadata(f"{node.replace('-', '--')}-k8s-{name}-eth0", "default")
    return WorkloadEndpoint(metadata, "k8s", node, "eth0", interface, ip_networks=tuple(map(ip_network, networks)))


NODES = {
    "n1": node("n1", "10.0.0.1/24", "fd00::1/64", "10.65.1.0", "fd65::1:0", "10.65.1.1"),
    "n2": node("n2", "10.0.0.2/24", "fd00::2/64", "10.65.2.0", "fd65::2:0", "10.65.2.1"),
    "n3": node("n3", "10.0.9.3/24", "fd00:9::3/64", "10.65.3.0", "fd65::3:0", "10.65.3.1"),
}
BLOCKS = (
    block("10.65.1.0/26", "n1"),
    block("10.65.2.0/26", "n2"),
    block("10.65.3.0/26", "n3"),
    block("fd65::1:0/122", "n1"),
    block("fd65::2:0/122", "n2"),
    block("fd65::3:0/122", "n3"),
)
INTERFACES = (
    HostInterface(1, "lo", True, 65536, (ip_interface("127.0.0.1/8"),)),
    HostInterface(2, "eth0", True, 1500, (ip_interface("10.0.0.1/24"), ip_interface("fd00::1/64"))),
    HostInterface(3, "eth1", True, 9000, (ip_interface("192.0.2.1/24"),)),
    HostInterface(9, "calia", True, 1450),
)


def snapshot(*pools, nodes=NODES, blocks=BLOCKS, endpoints=(), **more):
    return Snapshot("n1", nodes=dict(nodes), pools=pools, blocks=tuple(blocks), endpoints=tuple(endpoints), **more)
