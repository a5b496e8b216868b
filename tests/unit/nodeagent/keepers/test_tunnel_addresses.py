"""Tunnel addresses over IPAM: taken, kept, replaced, given back; told in the Node record only while they are ours."""

from ipaddress import ip_address, ip_network

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.errors import PoolExhausted
from cni_calico.ipam.allocator import Allocator
from cni_calico.log import SILENT
from cni_calico.model.documents.codec import decode_node, encode_node, encode_pool
from cni_calico.model.keys import ResourceKey
from cni_calico.model.wireguard import with_published_address, with_published_key
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.keepers.tunnel_addresses import KINDS, allocate_tunnel_addresses
from tests.deadlines import soon
from tests.fakes.memory_store import MemoryStore
from tests.unit.nodeagent.fabric import node, pool

NODE = ResourceKey("Node", "n1")
BLOCKS = "/calico/ipam/v2/assignment/"


class World:
    def __init__(self, **environ):
        self.store = MemoryStore()
        self.context = Context(parse_settings(environ), self.store, SILENT, wait=lambda _: True)
        self.put(NODE, encode_node(node("n1", "10.0.0.1/24", "fd00::1/64")))

    def put(self, key, document):
        self.store.elsewhere(Write.put(key, document))

    def pools(self, *pools):
        for path in list(self.store.documents()):
            if "/ippools/" in path:
                self.store.elsewhere(Write.remove(ResourceKey("IPPool", path.rpartition("/")[2])))
        for item in pools:
            self.put(ResourceKey("IPPool", item.metadata.name), encode_pool(item))

    def run(self, **more):
        return allocate_tunnel_addresses(self.context, "n1", **more)

    @property
    def spec(self):
        return self.store.get(NODE, soon()).value["spec"]

    def told(self):
        spec = self.spec
        return (
            spec.get("bgp", {}).get("ipv4IPIPTunnelAddr"),
            spec.get("ipv4VXLANTunnelAddr"),
            spec.get("ipv6VXLANTunnelAddr"),
        )

    def held(self):
        """Addresses by handle, as the blocks have them."""
        found = {}
        for path, block in self.store.documents().items():
            if path.startswith(BLOCKS):
                first = ip_network(block["cidr"]).network_address
                for ordinal, index in enumerate(block["allocations"]):
                    if index is not None:
                        found.setdefault(block["attributes"][index]["handle_id"], []).append(str(first + ordinal))
        return found


IPIP4, VXLAN4, VXLAN6 = (
    pool("10.65.0.0/16", ipip="Always"),
    pool("10.66.0.0/16", "CrossSubnet"),
    pool("fd65::/64", "Always"),
)
PLAIN = pool("10.67.0.0/16")


def test_one_address_of_each_kind_that_a_pool_asks_for():
    world = World()
    world.pools(IPIP4, VXLAN4, VXLAN6, PLAIN)
    assert len(world.run()) == 3
    ipip, vxlan, vxlan6 = world.told()
    assert world.held() == {
        "ipip-tunnel-addr-n1": [ipip],
        "vxlan-tunnel-addr-n1": [vxlan],
        "vxlan-v6-tunnel-addr-n1": [vxlan6],
    }
    assert ip_address(ipip) in IPIP4.cidr and ip_address(vxlan) in VXLAN4.cidr and ip_address(vxlan6) in VXLAN6.cidr


def test_attributes_are_exactly_node_and_type():
    world = World()
    world.pools(IPIP4, VXLAN4, VXLAN6)
    world.run()
    attributes = [
        attribute
        for path, block in world.store.documents().items()
        if path.startswith(BLOCKS)
        for attribute in block["attributes"]
    ]
    assert sorted(a["secondary"]["type"] for a in attributes) == sorted(kind.type for kind in KINDS if kind.field)
    assert all(a["secondary"] == {"node": "n1", "type": a["secondary"]["type"]} for a in attributes)


def test_a_second_run_changes_nothing():
    world = World()
    world.pools(IPIP4, VXLAN4, VXLAN6)
    world.run()
    before = world.store.documents()
    assert world.run() == ()
    assert world.store.documents() == before


def test_no_pool_needs_it_any_more():
    world = World()
    world.pools(IPIP4, VXLAN4)
    world.run()
    world.pools(PLAIN)
    assert world.run()
    assert world.told() == (None, None, None)
    assert world.held() == {}


@pytest.mark.parametrize("change", [{"disabled": True}, {"allowed_uses": ("Workload",)}, {"node_selector": "has(x)"}])
def test_a_pool_that_may_not_be_used(change):
    world = World()
    world.pools(pool("10.66.0.0/16", "Always", **change))
    assert world.run() == ()
    assert world.told() == (None, None, None)


def test_the_pool_is_gone_and_another_takes_its_place():
    world = World()
    world.pools(VXLAN4)
    world.run()
    old = world.told()[1]
    world.pools(pool("10.70.0.0/16", "Always"))
    world.run()
    new = world.told()[1]
    assert ip_address(new) in ip_network("10.70.0.0/16") and new != old
    assert world.held() == {"vxlan-tunnel-addr-n1": [new]}


def test_the_mode_of_the_pool_changes():
    world = World()
    world.pools(pool("10.66.0.0/16", ipip="Always"))
    world.run()
    world.pools(pool("10.66.0.0/16", "Always"))
    world.run()
    ipip, vxlan, _ = world.told()
    assert ipip is None and world.held() == {"vxlan-tunnel-addr-n1": [vxlan]}


def test_an_address_that_ipam_forgot_is_taken_again():
    world = World()
    world.pools(VXLAN4)
    world.put(NODE, encode_node(node("n1", "10.0.0.1/24", vtep="10.66.3.7")))
    world.run()
    assert world.told()[1] == "10.66.3.7"
    assert world.held() == {"vxlan-tunnel-addr-n1": ["10.66.3.7"]}


def test_an_address_that_is_not_ours_any_more_is_replaced():
    world = World()
    world.pools(VXLAN4)
    Allocator(world.store).assign_address(ip_address("10.66.3.7"), "net.somebody", {"node": "n2"}, "n2", soon())
    world.put(NODE, encode_node(node("n1", "10.0.0.1/24", vtep="10.66.3.7")))
    world.run()
    told = world.told()[1]
    assert told not in ("10.66.3.7", None)
    assert world.held() == {"net.somebody": ["10.66.3.7"], "vxlan-tunnel-addr-n1": [told]}


def test_an_address_outside_the_pools_is_replaced():
    world = World()
    world.pools(VXLAN4)
    world.put(NODE, encode_node(node("n1", "10.0.0.1/24", vtep="192.0.2.7")))
    world.run()
    assert ip_address(world.told()[1]) in VXLAN4.cidr


@pytest.mark.parametrize("nth", range(8))
@pytest.mark.parametrize("step", ["fail", "lost", "vanish"])
def test_interrupted_anywhere_the_next_run_finds_its_way(nth, step):
    world = World()
    world.pools(VXLAN4)
    world.store.script.extend([None] * nth + [step])
    try:
        world.run()
    except Exception as e:
        assert "scripted" in str(e)
    world.store.script.clear()
    world.run()
    told = world.told()[1]
    assert world.held() == {"vxlan-tunnel-addr-n1": [told]}
    assert sum("/handle/" in path for path in world.store.documents()) == 1


def test_a_kind_that_fails_does_not_keep_the_others_from_theirs():
    world = World()
    world.pools(pool("10.66.0.0/26", ipip="Always"), VXLAN6)
    allocator = Allocator(world.store)
    for address in ip_network("10.66.0.0/26"):
        allocator.assign_address(address, f"net.{address}", {"node": "n1"}, "n1", soon())
    with pytest.raises(PoolExhausted):
        world.run()
    assert world.told()[0] is None and world.told()[2] is not None


def test_what_others_wrote_stays():
    world = World()
    document = encode_node(node("n1", "10.0.0.1/24"))
    document["spec"]["future"] = {"a": 1}
    document["metadata"]["labels"] = {"rack": "r1"}
    world.put(NODE, document)
    world.pools(IPIP4)
    world.run()
    assert world.spec["future"] == {"a": 1} and world.spec["bgp"]["ipv4Address"] == "10.0.0.1/24"


def test_no_record_of_the_node():
    world = World()
    world.store.elsewhere(Write.remove(NODE))
    world.pools(IPIP4)
    assert world.run() == ()
    assert world.held() == {}


def test_host_local_addresses():
    world = World(USE_POD_CIDR="true")
    world.pools(IPIP4, VXLAN4)
    cidrs = (ip_network("10.244.1.0/24"), ip_network("fd44:1::/64"))
    world.run(pod_cidrs=cidrs)
    assert world.told() == ("10.244.1.1", "10.244.1.0", None)
    assert world.held() == {}
    assert world.run(pod_cidrs=cidrs) == () == world.run()
    world.pools(VXLAN6)
    world.run(pod_cidrs=cidrs)
    assert world.told() == (None, None, "fd44:1::")
    assert world.held() == {}


def test_a_pool_that_cannot_be_read_gives_nothing_back():
    world = World()
    world.pools(VXLAN4)
    world.run()
    told, held = world.told(), world.held()
    assert told[1] is not None
    document = encode_pool(VXLAN4)
    world.put(ResourceKey("IPPool", VXLAN4.metadata.name), {**document, "spec": {**document["spec"], "blockSize": "x"}})
    assert world.run() == ()
    assert (world.told(), world.held()) == (told, held)
    world.pools()  # it is gone now
    world.run()
    assert world.told() == (None, None, None) and world.held() == {}


def test_a_pool_that_is_no_document_keeps_what_there_is():
    world = World()
    world.pools(IPIP4)
    world.run()
    told, allocator = world.told(), Allocator(world.store)
    held = allocator.addresses_of(KINDS[0].handle_of("n1"), soon())
    assert told[0] and held
    world.store.plant(ResourceKey("IPPool", IPIP4.metadata.name), b"{")
    world.run()
    assert world.told() == told and allocator.addresses_of(KINDS[0].handle_of("n1"), soon()) == held


def with_key(world, family=4, text="x" * 44):
    """The Node says a key, or none any more."""
    world.put(
        NODE, encode_node(with_published_key(decode_node(NODE, world.store.get(NODE, soon()).value), family, text))
    )


@pytest.mark.parametrize(("family", "plain"), [(4, "10.65.0.0/16"), (6, "fd65::/64")])
def test_wireguards_address_comes_with_the_key_from_any_pool_and_goes_with_it(family, plain):
    world = World()
    world.pools(pool(plain))
    assert world.run() == ()
    with_key(world, family)
    world.run()
    [(handle, [address])] = world.held().items()
    assert handle == ("wireguard-tunnel-addr-n1" if family == 4 else "wireguard-v6-tunnel-addr-n1")
    assert world.spec["wireguard"] == {f"interfaceIPv{family}Address": address}
    assert world.run() == ()
    with_key(world, family, "")
    world.run()
    assert not world.held() and "wireguard" not in world.spec


def test_wireguards_address_that_another_record_says_is_replaced():
    """One outside of every pool is not ours."""
    world = World()
    world.pools(pool("10.65.0.0/16"))
    with_key(world)
    node_now = decode_node(NODE, world.store.get(NODE, soon()).value)
    world.put(NODE, encode_node(with_published_address(node_now, 4, ip_address("192.0.2.1"))))
    world.run()
    [[address]] = world.held().values()
    assert world.spec["wireguard"]["interfaceIPv4Address"] == address
