"""Services come, change and go while two leaders work in any order, with failing writes, lost answers, deaths and
pools that change: no address is in two Services' status, none that a living Service shows is free or somebody else's,
what others hold is never touched, and at the end everybody has what a naive look at the Services says.

CALICO_MACHINE_EXAMPLES=N runs N examples instead of the few that every test run can afford.
"""

from __future__ import annotations

import os
from ipaddress import ip_address, ip_network

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cni_calico.controllers.loadbalancer.rules import ALL_SERVICES, handle_of, is_managed, read_service
from cni_calico.controllers.loadbalancer.run import ServiceAddresses
from cni_calico.datastore.interface import Write
from cni_calico.errors import CalicoError, DatastoreUnavailable, OutcomeUnknown, TryAgain
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.virtual import AFFINITY, VirtualAddresses
from cni_calico.model.documents.codec import decode_block, decode_pool, encode
from cni_calico.model.keys import BlockKey, BlockList, HandleKey, ResourceKey, ResourceList
from cni_calico.model.resources import Attribute, Block, Handle
from tests.deadlines import soon
from tests.fakes.memory_store import MemoryStore

EXAMPLES = int(os.environ.get("CALICO_MACHINE_EXAMPLES", "60"))
NAMES = st.sampled_from(["a", "b", "c"])
POOLS = {4: "203.0.113.0/29", 6: "2001:db8::/125"}  # two blocks of four
FAMILIES = st.sampled_from([["IPv4"], ["IPv6"], ["IPv4", "IPv6"], ["IPv6", "IPv4"]])
OF_PODS = ip_network("10.0.0.0/26")
ASKED = st.sampled_from([None, "203.0.113.1", "203.0.113.6", "198.51.100.1", "wrong"])
FATES = st.lists(st.sampled_from([None, "fail", "lost", "vanish"]), max_size=3)


def key_of(name):
    return ResourceKey("Service", name, "space")


class FakeServices:
    """The API server's Services, with resourceVersions. ``fate`` is of the next write: "fail", "lost" or None."""

    def __init__(self):
        self.objects: dict[ResourceKey, dict] = {}
        self.version = 0
        self.fate = None

    def put(self, key, obj):
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        self.objects[key] = {**obj, "metadata": metadata}

    def read(self, key, deadline):
        return self.objects.get(key)

    def write_ingress(self, key, obj, ingress, deadline):
        fate, self.fate = self.fate, None
        if fate == "fail":
            raise DatastoreUnavailable("scripted")
        current = self.objects.get(key)
        if current is None or current["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise TryAgain("changed")
        self.put(key, {**obj, "status": {"loadBalancer": {"ingress": [{"ip": text} for text in ingress]}}})
        if fate == "lost":
            raise OutcomeUnknown("scripted")

    def tell(self, service, text, deadline):
        assert text


class LoadBalancerMachine(RuleBasedStateMachine):
    @initialize(transactions=st.booleans())
    def begin(self, transactions):
        self.store = MemoryStore(max_commit=60 if transactions else 1)
        self.services = FakeServices()
        self.uids = 0
        for version in POOLS:
            self.pool(version, "Automatic")
        allocations = (0, *[None] * 63)
        pods = Block(OF_PODS, "host:n1", allocations, tuple(range(1, 64)), (Attribute("net.1", {"node": "n1"}),))
        self.store.elsewhere(Write.put(BlockKey(OF_PODS), encode(pods)))
        self.store.elsewhere(Write.put(HandleKey("net.1"), encode(Handle({OF_PODS: 1}))))
        self.foreign = self.store.documents()
        self.leaders = [self.lead(), self.lead()]
        self.seen_pools = [self.read_pools(), self.read_pools()]
        self.is_inside = False

    def lead(self):
        made = ServiceAddresses(
            VirtualAddresses(Allocator(self.store, sleep=lambda seconds: None)), self.services, lambda text: None
        )
        return made

    def pool(self, version, mode):
        size = {4: 30, 6: 126}[version]
        spec = {"cidr": POOLS[version], "allowedUses": ["LoadBalancer"], "blockSize": size, "assignmentMode": mode}
        name = f"lb{version}"
        document = {"kind": "IPPool", "metadata": {"name": name}, "spec": {**spec, "nodeSelector": "all()"}}
        self.store.elsewhere(Write.put(ResourceKey("IPPool", name), document))

    def read_pools(self):
        return [decode_pool(item.key, item.value) for item in self.store.list(ResourceList("IPPool"), soon()).items]

    # -- what happens in the cluster ----------------------------------------------------------------------------------

    @rule(
        name=NAMES, asked=ASKED, kind=st.sampled_from(["LoadBalancer", "LoadBalancer", "ClusterIP"]), families=FAMILIES
    )
    def service_is_written(self, name, asked, kind, families):
        key = key_of(name)
        old = self.services.objects.get(key)
        self.uids += 1
        uid = old["metadata"]["uid"] if old is not None else f"u{self.uids}"
        annotations = {} if asked is None else {"projectcalico.org/loadBalancerIPs": f'["{asked}"]'}
        metadata = {"name": name, "namespace": "space", "uid": uid, "annotations": annotations}
        self.services.put(key, {**(old or {}), "metadata": metadata, "spec": {"type": kind, "ipFamilies": families}})

    @rule(name=NAMES)
    def service_goes(self, name):
        self.services.objects.pop(key_of(name), None)

    @rule(version=st.sampled_from([4, 6]), mode=st.sampled_from(["Automatic", "Manual"]))
    def pool_changes(self, version, mode):
        self.pool(version, mode)

    # -- what the leaders do ------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), name=NAMES, fates=FATES, status=st.sampled_from([None, "fail", "lost"]))
    def works(self, who, name, fates, status):
        self.store.script.extend(fates)
        self.services.fate = status
        self.step(who, key_of(name))
        self.store.script.clear()
        self.services.fate = None

    @rule(name=NAMES, other=NAMES, before=st.integers(0, 3))
    def both_work_at_once(self, name, other, before):
        """The second leader does all its work before a write of the first one."""

        def between(store):
            if not self.is_inside:
                self.is_inside = True
                self.step(1, key_of(other))
                self.is_inside = False

        self.store.script.extend([*[None] * before, between])
        self.step(0, key_of(name))
        self.store.script.clear()

    @rule(who=st.integers(0, 1))
    def cache_of_pools_catches_up(self, who):
        self.seen_pools[who] = self.read_pools()

    def step(self, who, key):
        """With the pools as this leader has seen them last."""
        try:
            self.leaders[who].reconcile(key, ALL_SERVICES, self.seen_pools[who], soon())
        except CalicoError:
            return False
        return True

    @rule(who=st.integers(0, 1))
    def dies_and_another_leads(self, who):
        """It knows nothing; the sweep tells it who has addresses."""
        self.leaders[who] = self.lead()

    @rule(who=st.integers(0, 1))
    def sweeps(self, who):
        self.leaders[who].remember(soon())

    # -- what must be so ----------------------------------------------------------------------------------------------

    def held(self):
        """The handle of every address in load balancers' blocks."""
        found = {}
        for item in self.store.list(BlockList(), soon()).items:
            block = decode_block(item.key, item.value)
            if block.affinity == AFFINITY:
                for ordinal, index in enumerate(block.allocations):
                    if index is not None:
                        address = block.cidr[ordinal]
                        assert address not in found
                        found[address] = block.attributes[index].handle_id
        return found

    def shown(self):
        """(service, address) of every status."""
        services = [read_service(obj) for obj in self.services.objects.values()]
        return [(service, ip_address(text)) for service in services for text in service.ingress]

    @invariant()
    def what_a_service_shows_is_its_own(self):
        if hasattr(self, "store"):
            held = self.held()
            for service, address in self.shown():
                assert held.get(address) == service.handle_id, f"{service.name} shows {address}"

    @invariant()
    def what_others_hold_is_as_it_was(self):
        if hasattr(self, "store"):
            now = self.store.documents()
            others = {path: document for path, document in self.foreign.items() if "ippools" not in path}
            assert {path: now.get(path) for path in others} == others

    def teardown(self):
        if not hasattr(self, "store"):
            return
        self.leaders = [self.lead(), self.lead()]
        self.seen_pools = [self.read_pools()] * 2
        for _ in range(4):  # what one gives back another may be waiting for
            keys = self.leaders[0].remember(soon()) | set(self.services.objects)
            assert all(self.step(0, key) for key in sorted(keys, key=str))
        managed = {}
        for obj in self.services.objects.values():
            service = read_service(obj)
            if is_managed(service, ALL_SERVICES):
                managed[service.handle_id] = service
            else:
                assert service.ingress == ()
        held = self.held()
        assert set(held.values()) <= set(managed), "somebody who is gone still holds an address"
        automatic = {pool.cidr.version for pool in self.read_pools() if pool.assignment_mode == "Automatic"}
        for handle_id, service in managed.items():
            own = [address for address, holder in held.items() if holder == handle_id]
            asked = service.annotations.get("projectcalico.org/loadBalancerIPs", "")
            refused = "wrong" in asked or (bool(asked) and 4 not in service.families)  # keeps its status and addresses
            assert refused or sorted(service.ingress) == sorted(map(str, own))
            assert len({address.version for address in own}) == len(own), "one address a family"
            if not asked:
                assert {address.version for address in own} == automatic & set(service.families), service
            elif "203" in asked and 4 in service.families:
                takers = [other for other in managed.values() if other.annotations == service.annotations]
                held_it = [h for a, h in held.items() if str(a) in asked]
                assert len(held_it) == 1, (asked, takers)


LoadBalancerMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, deadline=None, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestLoadBalancerMachine = LoadBalancerMachine.TestCase


def test_handles_are_upstreams() -> None:
    assert handle_of("web", "default", "UID") == handle_of("WEB", "Default", "uid")
    name = handle_of("web", "default", "0d9c6b5a-1111-2222-3333-444455556666")
    assert name.startswith("lb-") and not set(name[3:]) & set("-_.=")
