"""Claims and blocks in any order: what counts is what the present ones mean together, and every difference is told."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cni_calico.model.keys import ResourceKey
from cni_calico.model.lasting import ALTERNATE
from cni_calico.model.resources import Attribute, Block, Network
from cni_calico.policy.confirmed import ConfirmedAddresses, PodClaim, held_in_block

# the second and third contain the first: pools are being replaced
NETWORKS: list[Network] = [
    ip_network(text) for text in ("10.0.0.0/30", "10.0.0.0/29", "10.0.0.0/28", "10.0.0.4/30", "fd00::/126")
]
ADDRESSES = sorted({address.packed for network in NETWORKS for address in network})
HOLDERS = ["a/p", "a/q", "b/p"]
KEYS = [ResourceKey("WorkloadEndpoint", f"n-k8s-{i}-eth0", "a") for i in range(3)]
addresses = st.sampled_from(ADDRESSES)


class Confirming(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.known = ConfirmedAddresses()
        self.claims: dict[ResourceKey, PodClaim] = {}
        self.holders: dict[Network, dict[bytes, str]] = {}
        self.told: dict[ResourceKey, frozenset[bytes]] = {}

    def hear(self, changed: set[ResourceKey]) -> None:
        for key in changed:
            self.told[key] = self.known.confirmed(key)

    @rule(
        key=st.sampled_from(KEYS),
        holder=st.sampled_from(HOLDERS),
        claimed=st.lists(addresses, max_size=3, unique=True),
        routed=st.frozensets(addresses, max_size=2),
    )
    def claim(self, key: ResourceKey, holder: str, claimed: list[bytes], routed: frozenset[bytes]) -> None:
        self.claims[key] = PodClaim(holder, tuple(claimed), routed)
        self.hear(self.known.put_claim(key, self.claims[key]))

    @rule(key=st.sampled_from(KEYS))
    def claim_nothing(self, key: ResourceKey) -> None:
        self.claims.pop(key, None)
        self.hear(self.known.put_claim(key, None))

    @rule(network=st.sampled_from(NETWORKS), held=st.dictionaries(st.integers(0, 15), st.sampled_from(HOLDERS)))
    def write_block(self, network: Network, held: dict[int, str]) -> None:
        held = {ordinal: holder for ordinal, holder in held.items() if ordinal < network.num_addresses}
        self.holders[network] = {network[ordinal].packed: holder for ordinal, holder in held.items()}
        self.hear(self.known.put_block(network, held))

    @rule(network=st.sampled_from(NETWORKS))
    def remove_block(self, network: Network) -> None:
        self.holders.pop(network, None)
        self.hear(self.known.put_block(network, None))

    @invariant()
    def counts_what_is_confirmed(self) -> None:
        for key in KEYS:
            wanted = set()
            claim = self.claims.get(key, PodClaim("", ()))
            for address in claim.addresses:
                holders = [held[address] for held in self.holders.values() if address in held]
                if claim.holder in holders or (not holders and address in claim.routed):
                    wanted.add(address)
            assert self.known.confirmed(key) == wanted == self.told.get(key, frozenset())

    @invariant()
    def keeps_nothing_of_what_is_gone(self) -> None:
        assert set(self.known._claimants) == {a for claim in self.claims.values() for a in claim.addresses}


TestConfirming = Confirming.TestCase
TestConfirming.settings = settings(deadline=None, stateful_step_count=20, max_examples=60)


def test_what_a_block_says() -> None:
    """An address without a pod has no holder: a tunnel's, or one that an old version took."""
    cidr = ip_network("10.0.0.0/30")
    attributes = (
        Attribute("k8s-pod-network.c1", {"namespace": "a", "pod": "p", "node": "n1"}),
        Attribute("k8s-pod-network.c2", {}),
        Attribute("vxlan-tunnel-addr-n1", {"node": "n1", "type": "vxlanTunnelAddress"}),
    )
    block = Block(cidr, "host:n1", (0, 1, 2, None), (3,), attributes)
    assert held_in_block(block).holders == {0: "a/p"}
    moving = Attribute("net.vmi.a.vm", {"namespace": "a", "pod": "p"}, {ALTERNATE: {"namespace": "a", "pod": "q"}})
    left = Attribute("net.vmi.a.vm", {}, {ALTERNATE: {"namespace": "a", "pod": "q"}})
    shared = held_in_block(Block(cidr, "host:n1", (0, 1, None, None), (2, 3), (moving, left)))
    assert shared.holders == {0: "a/p a/q", 1: "a/q"}
    known = ConfirmedAddresses()
    for key, pod in zip(KEYS, ("a/p", "a/q", "b/p"), strict=True):
        known.put_claim(key, PodClaim(pod, (cidr[0].packed, cidr[1].packed)))
    known.put_block(cidr, shared.holders)
    assert [len(known.confirmed(key)) for key in KEYS] == [1, 2, 0], "both pods of a machine that moves have it"
    deleted = Block(cidr, "host:n1", (0, 1, 2, None), (3,), attributes, deleted=True)
    assert not held_in_block(deleted).holders
