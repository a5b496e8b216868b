"""What BIRD is told while records cannot be read: what they said last, or nothing new at all."""

from dataclasses import replace

import pytest

from cni_calico.datastore import unreadable
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.errors import BirdUnavailable, BirdUnsupported
from cni_calico.log import SILENT
from cni_calico.model.documents.codec import encode_node, encode_pool
from cni_calico.model.keys import AffinityKey, ResourceKey
from cni_calico.nodeagent.bgp import keeper as bgp
from cni_calico.nodeagent.bgp.bird.controller import CONFIGURED, REFUSAL, Applied
from cni_calico.nodeagent.bgp.config.snapshot import BgpEnvironment
from cni_calico.nodeagent.bgp.keeper import BgpKeeper, what_needs_bird
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.view.sources import Sources
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore
from tests.netns.agents import key_of
from tests.unit.nodeagent.fabric import BLOCKS, NODES, node, pool, snapshot

POOL = pool("10.65.0.0/16")
POOL_KEY, OTHER = key_of(POOL), ResourceKey("Node", "n2")
PEER, FILTER = ResourceKey("BGPPeer", "tor"), ResourceKey("BGPFilter", "odd")
AFFINITY = AffinityKey("n1", POOL.cidr)
GOOD_PEER = {"metadata": {"name": "tor"}, "spec": {"peerIP": "10.0.0.254", "asNumber": 65000}}
WRONG = {"metadata": {"name": "wrong"}, "spec": 7}


class OneBird:
    """Stands for BirdController: remembers what is in force. ``there``: a configuration from before."""

    def __init__(self, there):
        self.there, self.in_force = there, None
        self.answers = []

    @property
    def running(self):
        return self.there

    def keep(self, deadline):
        return self.there

    def apply(self, config, deadline):
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        self.there, self.in_force = bool(config.files), config
        return Applied(CONFIGURED)

    def peers(self):
        return {str(peer.address) for peer in self.in_force.peers}


class World:
    """A store, and an agent's BGP part on it, which looks when it is told to."""

    def __init__(self, store, there, backend="bird"):
        self.store, self.bird, self.facts = store, OneBird(there), {}
        context = Context(parse_settings({}), store, SILENT, wait=lambda _: True)
        self.keeper = BgpKeeper(context, "n1", BgpEnvironment(backend=backend, node_name="n1"), self.facts)
        self.keeper.controller = self.bird
        self.sources = Sources(store, "n1", lambda: None)
        self.sources.wait_synced(Deadline.after(10))
        self.keeper._feed.wait_synced(Deadline.after(10))

    def look(self):
        self.keeper.use(self.sources.snapshot())
        return self.keeper._apply()

    def stop(self):
        self.keeper._feed.stop()
        self.sources.stop()


@pytest.fixture
def bgp_store():
    made = MemoryStore()
    for each in (node("n1", "10.0.0.1/24"), node("n2", "10.0.0.2/24")):
        made.elsewhere(Write.put(key_of(each), encode_node(each)))
    made.elsewhere(Write.put(POOL_KEY, encode_pool(POOL)), Write.put(PEER, GOOD_PEER))
    return made


@pytest.fixture
def start_keeper(bgp_store, monkeypatch):
    monkeypatch.setattr(bgp, "read_interfaces", lambda deadline: [])
    monkeypatch.setattr(unreadable, "ASK_AGAIN_S", 0.0)
    worlds = []

    def begin(there=True, **more):
        worlds.append(World(bgp_store, there, **more))
        return worlds[-1]

    yield begin
    for world in worlds:
        world.stop()


def spoil(store, key, garbage):
    if garbage:
        store.plant(key, b"{")
    else:
        store.elsewhere(Write.put(key, WRONG))


@pytest.mark.parametrize("garbage", [False, True])
def test_what_becomes_unreadable_still_counts(bgp_store, start_keeper, garbage):
    world = start_keeper()
    assert world.look()
    first = world.bird.in_force
    assert world.bird.peers() == {"10.0.0.2", "10.0.0.254"}
    for key in (POOL_KEY, OTHER, PEER):
        spoil(bgp_store, key, garbage)
    until(lambda: len(world.sources.snapshot().problems) == 2, "the agent is told")
    until(lambda: world.look() and len(world.facts["bgp_problems"]) == 1, "BGP is told")
    assert "stays in force" in world.facts["bgp_problems"][0]
    assert world.bird.in_force.files == first.files


@pytest.mark.parametrize(
    ("key", "garbage"),
    [(AFFINITY, True), *((key, garbage) for key in (POOL_KEY, OTHER, PEER, FILTER) for garbage in (False, True))],
    ids=str,
)
def test_what_nobody_has_read_keeps_what_is_there(bgp_store, start_keeper, key, garbage):
    """An agent that begins: the configuration of before may be made of it."""
    spoil(bgp_store, key, garbage)
    world = start_keeper()
    assert not world.look() and world.bird.in_force is None
    assert world.facts["bgp"] == "" and "configuration stays as it is" in str(world.facts["bgp_problems"])
    bgp_store.elsewhere(Write.remove(key))
    until(world.look, "it is gone")
    assert world.bird.in_force is not None and world.facts["bgp_problems"] == []


def test_without_a_configuration_of_before_one_is_made(bgp_store, start_keeper):
    spoil(bgp_store, OTHER, False)
    world = start_keeper(there=False)
    assert world.look() and world.bird.peers() == {"10.0.0.254"}
    bgp_store.elsewhere(Write.remove(PEER))  # what is in force is ours: it goes on
    until(lambda: world.look() and world.bird.peers() == set(), "the peer is gone")


def test_what_comes_unreadable_stops_nothing(bgp_store, start_keeper):
    """It cannot be part of a configuration that is made of what was known before it came."""
    world = start_keeper()
    assert world.look()
    bgp_store.elsewhere(Write.put(ResourceKey("Node", "n9"), WRONG), Write.put(FILTER, WRONG))
    until(lambda: world.sources.snapshot().incomplete, "the agent is told")
    third = node("n3", "10.0.0.3/24")
    bgp_store.elsewhere(Write.put(key_of(third), encode_node(third)))
    until(lambda: world.look() and "10.0.0.3" in world.bird.peers(), "a new node")
    assert "10.0.0.2" in world.bird.peers()


def test_settings_of_another_node_are_none_of_ours(bgp_store, start_keeper):
    bgp_store.elsewhere(Write.put(ResourceKey("BGPConfiguration", "node.n2"), WRONG))
    world = start_keeper()
    assert world.look() and world.bird.in_force is not None


def test_where_bird_is_not_wanted_it_goes(bgp_store, start_keeper):
    spoil(bgp_store, OTHER, False)
    world = start_keeper(backend="vxlan")
    assert world.look() and not world.bird.in_force.files


def test_without_its_configuration_a_node_does_not_begin(bgp_store, start_keeper):
    bgp_store.elsewhere(Write.put(ResourceKey("BGPConfiguration", "default"), WRONG))
    world = start_keeper(there=False)
    assert not world.look() and world.bird.in_force is None
    assert "BGPConfiguration default" in world.facts["bgp"]


MISSING = BirdUnavailable("cannot start BIRD: it is not installed")
NO = Applied(REFUSAL, "bird.cfg:7 syntax error")


@pytest.mark.parametrize(("answer", "why"), [(MISSING, "it is not installed"), (NO, "syntax error")])
def test_a_node_whose_pods_need_bird_is_not_ready_without_it(start_keeper, answer, why):
    world = start_keeper(there=False)
    world.bird.answers = [answer]
    assert not world.look()
    (text,) = world.facts["bgp_unmet"]
    assert text.startswith(f"IPPool {POOL_KEY.name} needs BGP for the routes to 1 other nodes") and why in text
    assert world.look() and world.facts["bgp_unmet"] == []


@pytest.mark.parametrize(
    ("answer", "ways_out"),
    [
        (BirdUnsupported("cannot find BIRD"), "cannot find BIRD; install BIRD 2.0.12 or later"),
        (NO, "syntax error; correct what the text names"),
    ],
)
def test_the_reason_says_what_to_do(start_keeper, answer, ways_out):
    world = start_keeper(there=False)
    world.bird.answers = [answer]
    assert not world.look()
    (text,) = world.facts["bgp_unmet"]
    assert ways_out in text and text.endswith(", or give the pool a vxlanMode in place of its ipipMode")


OLD = replace(POOL, disabled=True)


@pytest.mark.parametrize(
    ("snap", "nodes"),
    [
        (snapshot(POOL), 2),
        (snapshot(POOL, blocks=()), 2),  # pods may come any moment
        (snapshot(OLD), 2),  # blocks of it are in use
        (snapshot(OLD, blocks=BLOCKS[:2]), 1),
        (snapshot(OLD, blocks=BLOCKS[:1]), 0),  # only our own
        (snapshot(OLD, blocks=()), 0),
        (snapshot(replace(OLD, vxlan_mode="Always")), 0),
        (snapshot(replace(POOL, vxlan_mode="Always"), OLD), 2),
        (snapshot(POOL, nodes={"n1": NODES["n1"]}), 0),
    ],
)
def test_bird_is_needed_while_another_node_has_or_may_get_addresses(snap, nodes):
    said = f"IPPool {POOL_KEY.name} needs BGP for the routes to {nodes} other nodes" if nodes else ""
    assert what_needs_bird(snap, None)[0] == said


def test_a_refused_configuration_is_no_reason_while_bird_runs_with_the_one_before(start_keeper):
    world = start_keeper()
    world.bird.answers = [NO]
    assert not world.look()
    assert world.facts["bgp_unmet"] == [] and "syntax error" in world.facts["bgp"]


def test_nothing_needs_bird_on_a_node_that_is_alone_or_uses_vxlan(bgp_store, start_keeper):
    bgp_store.elsewhere(Write.put(POOL_KEY, encode_pool(replace(POOL, vxlan_mode="Always"))))
    world = start_keeper(there=False)
    world.bird.answers = [MISSING, MISSING, MISSING]
    assert not world.look()
    (text,) = world.facts["bgp_unmet"]
    assert text.startswith("BGPPeer tor needs BGP")  # a router is waiting
    bgp_store.elsewhere(Write.remove(PEER))
    until(lambda: not world.keeper._feed.read()[0].peers, "the peer is gone")
    assert not world.look() and world.facts["bgp_unmet"] == []
    bgp_store.elsewhere(Write.put(POOL_KEY, encode_pool(POOL)), Write.remove(OTHER))
    until(lambda: len(world.sources.snapshot().nodes) == 1, "the other node is gone")
    assert not world.look() and world.facts["bgp_unmet"] == []
