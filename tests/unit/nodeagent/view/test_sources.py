"""The agent's view of the datastore when records become unreadable: what they said before stays, the rest goes on."""

import json
import threading
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore import unreadable
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT
from cni_calico.model.documents.codec import encode, encode_node, encode_pool
from cni_calico.model.keys import AffinityList, BlockList, ResourceKey
from cni_calico.model.resources import Metadata
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.dataplane.encapsulation import endpoint_of
from cni_calico.nodeagent.view.known_nodes import parse_node_addresses
from cni_calico.nodeagent.view.last_valid import VIEW_FILE, LastValid
from cni_calico.nodeagent.view.sources import Sources
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore
from tests.netns.agents import key_of
from tests.unit.nodeagent.fabric import node, pool, workload

NODE, OTHER, POOL = ResourceKey("Node", "n1"), ResourceKey("Node", "n2"), ResourceKey("IPPool", "p")
WRONG_NODE = {"metadata": {"name": "n2"}, "spec": {"bgp": {"ipv4Address": 7}}}
WRONG_POOL = {"metadata": {"name": "p"}, "spec": {"cidr": "10.65.0.0/16", "blockSize": 122}}


def named_pool():
    return {**encode_pool(pool("10.65.0.0/16", "Always")), "metadata": {"name": "p"}}


HALF_NODE = {"metadata": {"name": "n2"}, "spec": {"bgp": {"ipv4Address": "10.0.0.7/24", "asNumber": []}}}


@pytest.fixture
def two_node_store():
    made = MemoryStore()
    made.elsewhere(Write.put(NODE, encode_node(node("n1", "10.0.0.1/24"))))
    made.elsewhere(Write.put(OTHER, encode_node(node("n2", "10.0.0.2/24"))))
    made.elsewhere(Write.put(POOL, named_pool()))
    return made


@pytest.fixture
def watch(two_node_store):
    """Starts to look at the store, whatever is in it then."""
    started = []

    def start(last_valid=None):
        started.append(Sources(two_node_store, "n1", threading.Event().set, last_valid=last_valid))
        started[-1].wait_synced(Deadline.after(10))
        return started[-1]

    yield start
    for sources in started:
        sources.stop()


@pytest.mark.parametrize("use_pod_cidr", [False, True])
def test_flannels_end_of_a_node_counts_only_with_its_pod_cidr(two_node_store, use_pod_cidr):
    end = {"address": "10.0.0.9", "vtep": "10.65.2.0", "mac": "3a:00:00:00:00:01", "vni": 1}
    two_node_store.elsewhere(Write.put(OTHER, {"metadata": {"name": "n2"}, "spec": {}, "status": {"flannel": end}}))
    sources = Sources(two_node_store, "n1", threading.Event().set, use_pod_cidr=use_pod_cidr)
    try:
        sources.wait_synced(Deadline.after(10))
        found = endpoint_of(sources.snapshot().nodes["n2"], 4)
    finally:
        sources.stop()
    assert (str(found.vtep) == "10.65.2.0") if use_pod_cidr else found is None


def test_endpoints_of_other_nodes_are_not_told(two_node_store):
    told = threading.Event()
    sources = Sources(two_node_store, "n1", told.set)
    try:
        sources.wait_synced(Deadline.after(10))
        own = [workload("a", "calia", "10.65.1.5/32"), workload("b", "calib", "10.65.1.6/32")]
        others = [workload("a", "calia", "10.65.2.5/32", node=name) for name in ("n2", "n1-0", "n")]
        told.clear()
        for endpoint in (others[0], others[2]):
            two_node_store.elsewhere(Write.put(key_of(endpoint), encode(endpoint)))
        assert not told.wait(0.3)
        for endpoint in (own[0], others[1], own[1]):  # a name may begin like ours
            two_node_store.elsewhere(Write.put(key_of(endpoint), encode(endpoint)))
        until(lambda: len(sources.snapshot().endpoints) == 2, "ours")
        assert {str(endpoint.ip_networks[0]) for endpoint in sources.snapshot().endpoints} == {
            "10.65.1.5/32",
            "10.65.1.6/32",
        }
    finally:
        sources.stop()


def test_what_tunnels_need_is_known_before_ipams_records(two_node_store, monkeypatch):
    """Policy waits for that, and for no more."""
    held, read = threading.Event(), two_node_store.list

    def read_late(listing, *arguments, **options):
        if isinstance(listing, BlockList | AffinityList):
            held.wait()
        return read(listing, *arguments, **options)

    monkeypatch.setattr(two_node_store, "list", read_late)
    sources = Sources(two_node_store, "n1", threading.Event().set)
    try:
        until(lambda: sources.begun, "Nodes and pools have been read")
        assert not sources.settle()
        seen = sources.snapshot()
        assert set(seen.nodes) == {"n1", "n2"} and len(seen.pools) == 1 and seen.blocks == ()
        held.set()
        sources.wait_synced(Deadline.after(10))
    finally:
        held.set()
        sources.stop()


def test_pools_that_make_no_sense_are_told(two_node_store, watch):
    """Readable, but stored without calicoctl's checks."""
    wrong = replace(pool("fd65::/48", ipip="Always"), block_size=26)
    two_node_store.elsewhere(Write.put(key_of(wrong), encode_pool(wrong)))
    assert watch().snapshot().problems == (
        "IPPool fd65---48: spec.blockSize = 26 (must be from 116 to 128 for an IPv6 pool)",
        'IPPool fd65---48: spec.ipipMode = "Always" (IPIP is not supported on an IPv6 pool; use vxlanMode)',
    )


def test_what_becomes_unreadable_keeps_what_it_said(two_node_store, watch):
    sources = watch()
    first = sources.snapshot()
    two_node_store.elsewhere(Write.put(OTHER, WRONG_NODE), Write.put(POOL, WRONG_POOL))
    until(lambda: len(sources.snapshot().problems) == 2, "both are told")
    now = sources.snapshot()
    assert (now.nodes, now.pools) == (first.nodes, first.pools)
    assert all("stays in force" in text for text in now.problems)
    assert not now.incomplete
    two_node_store.elsewhere(Write.put(OTHER, encode_node(node("n2", "10.0.0.22/24"))), Write.remove(POOL))
    until(lambda: not sources.snapshot().problems, "one is right, the other is gone")
    assert str(sources.snapshot().nodes["n2"].ipv4) == "10.0.0.22/24"
    assert sources.snapshot().pools == ()


def test_what_was_never_readable_makes_the_view_incomplete(two_node_store, watch):
    two_node_store.elsewhere(Write.put(NODE, WRONG_NODE))
    sources = watch()
    now = sources.snapshot()
    assert now.own is None and now.incomplete and len(now.problems) == 1
    assert "stays in force" not in now.problems[0]
    two_node_store.elsewhere(Write.put(NODE, encode_node(node("n1", "10.0.0.1/24"))))
    until(lambda: sources.snapshot().own is not None, "it is right")
    assert not sources.snapshot().incomplete and sources.snapshot().problems == ()


def test_what_is_removed_and_comes_back_unreadable_says_nothing(two_node_store, watch):
    sources = watch()
    two_node_store.elsewhere(Write.remove(OTHER))
    until(lambda: "n2" not in sources.snapshot().nodes, "it is gone")
    two_node_store.elsewhere(Write.put(OTHER, WRONG_NODE))
    until(lambda: sources.snapshot().incomplete, "it is told")
    assert "n2" not in sources.snapshot().nodes
    two_node_store.elsewhere(Write.remove(OTHER))
    until(lambda: not sources.snapshot().incomplete, "it is gone again")


def test_settings_and_endpoints_are_not_the_fabric(two_node_store, watch):
    two_node_store.elsewhere(
        Write.put(ResourceKey("FelixConfiguration", "default"), {"metadata": {"name": "default"}, "spec": 7})
    )
    sources = watch()
    assert len(sources.snapshot().problems) == 1 and not sources.snapshot().incomplete


def test_what_is_no_document_any_more_keeps_what_it_said(two_node_store, watch, monkeypatch):
    monkeypatch.setattr(unreadable, "ASK_AGAIN_S", 0.0)
    sources = watch()
    first = sources.snapshot()
    two_node_store.plant(OTHER, b"{")
    until(lambda: sources.snapshot().problems, "it is told")
    now = sources.snapshot()
    assert now.nodes == first.nodes and not now.unread
    assert len(now.problems) == 1 and now.problems[0].startswith("Node n2: ") and "stays in force" in now.problems[0]
    two_node_store.plant(OTHER, json.dumps(WRONG_NODE).encode())  # a document again, and no Node yet
    until(lambda: "ipv4Address" in str(sources.snapshot().problems), "it is told again")
    assert sources.snapshot().nodes == first.nodes and not sources.snapshot().unread
    two_node_store.plant(OTHER, json.dumps(encode_node(node("n2", "10.0.0.22/24"))).encode())
    until(lambda: str(sources.snapshot().nodes["n2"].ipv4) == "10.0.0.22/24", "it is right")
    assert sources.snapshot().problems == ()
    two_node_store.plant(POOL, b"[]")
    until(lambda: sources.snapshot().problems, "it is told")
    assert sources.snapshot().pools == first.pools
    two_node_store.elsewhere(Write.remove(POOL))
    until(lambda: not sources.snapshot().pools, "it is gone")
    assert sources.snapshot().problems == ()


def test_what_never_was_a_document_is_unread(two_node_store, watch, monkeypatch):
    monkeypatch.setattr(unreadable, "ASK_AGAIN_S", 0.0)
    endpoint = key_of(workload("a", "calia", "10.65.1.5/32"))
    for key in (OTHER, endpoint):
        two_node_store.plant(key, b"{")
    sources = watch()
    now = sources.snapshot()
    assert now.unread == {OTHER, endpoint} and now.incomplete and now.cut_off == ("n2",) and len(now.problems) == 3
    assert now.unread_of("WorkloadEndpoint", "IPPool") == (endpoint,)
    two_node_store.plant(OTHER, json.dumps(encode_node(node("n2", "10.0.0.2/24"))).encode())
    until(lambda: "n2" in sources.snapshot().nodes, "it is right")
    assert sources.snapshot().unread == {endpoint} and not sources.snapshot().incomplete
    two_node_store.elsewhere(Write.remove(endpoint))
    until(lambda: not sources.snapshot().unread, "it is gone")
    assert sources.snapshot().problems == ()


def test_settings_for_others_are_not_ours(two_node_store, watch):
    names = ("node.n2", "node.n1", "selecting")
    for name in names:
        two_node_store.elsewhere(
            Write.put(ResourceKey("FelixConfiguration", name), {"metadata": {"name": name}, "spec": 7})
        )
    unread = {ResourceKey("FelixConfiguration", name) for name in ("node.n1", "selecting")}  # it may select this node
    assert watch().snapshot().unread == unread


def test_recording_of_flows_is_switched_by_an_annotation(two_node_store, watch):
    """Upstream's schema has no field for it; that of the node wins."""

    def put(name, **annotations):
        given = {f"config.projectcalico.org/{key}": value for key, value in annotations.items()}
        metadata = {"name": name, "annotations": given}
        two_node_store.elsewhere(Write.put(ResourceKey("FelixConfiguration", name), {"metadata": metadata, "spec": {}}))

    def flows():
        now = sources.snapshot()
        parsed = parse_felix({}, now.felix_node, now.felix_default)
        return parsed.settings.flows, len(parsed.warnings)

    put("default", Flows="Enabled")
    sources = watch()
    assert flows() == ("Enabled", 0)
    put("node.n1", Flows="Denied", flows="Enabled")
    until(lambda: flows() == ("Denied", 0), "of the node")
    put("node.n1", Flows="sometimes")
    until(lambda: flows() == ("Enabled", 1), "it is told, and not used")
    put("node.n1")
    put("default")
    until(lambda: flows() == ("Auto", 0), "nobody says anything")


def test_a_configuration_for_some_nodes_comes_and_goes_with_the_labels(two_node_store, watch):
    def put(name, at, **spec):
        metadata = {"name": name, "creationTimestamp": f"2026-01-0{at}T00:00:00Z"}
        two_node_store.elsewhere(
            Write.put(ResourceKey("FelixConfiguration", name), {"metadata": metadata, "spec": spec})
        )

    def label(**labels):
        labelled = replace(node("n1", "10.0.0.1/24"), metadata=Metadata("n1", labels=labels))
        two_node_store.elsewhere(Write.put(NODE, encode_node(labelled)))

    def port():
        now = sources.snapshot()
        return parse_felix({}, now.felix_node, now.felix_default, now.felix_scoped).settings.health_port

    put("default", 1, healthPort=1)
    put("edge", 3, healthPort=2, nodeSelector="rack == 'edge'")
    sources = watch()
    assert port() == 1
    label(rack="edge")
    until(lambda: port() == 2, "it is selected")
    put("older", 2, healthPort=3, nodeSelector="has(rack)")
    until(lambda: port() == 3, "the older one counts")
    assert len(sources.snapshot().felix_scoped.warnings) == 1
    put("node.n1", 1, healthPort=4)
    until(lambda: port() == 4, "that of the node alone wins")
    two_node_store.elsewhere(Write.remove(ResourceKey("FelixConfiguration", "node.n1")))
    label()
    until(lambda: port() == 1, "nothing selects it")


def test_all_parts_that_share_a_store_are_told(two_node_store, watch):
    """The hook that the store has is one."""
    first, second = watch(), watch()
    two_node_store.plant(OTHER, b"{")
    until(lambda: first.snapshot().problems, "one is told")
    until(lambda: second.snapshot().problems, "the other is told")


def test_blocks_are_listed_later_the_more_nodes_there_are(two_node_store, watch, monkeypatch):
    """By a random part of a second for every 100 nodes, so that agents that start together do not ask together."""
    ranges = []
    monkeypatch.setattr(
        "cni_calico.nodeagent.view.sources.RANDOM.uniform", lambda low, high: ranges.append(high) or low
    )
    for number in range(3, 8):
        document = encode_node(node(f"n{number}", f"10.0.0.{number}/24"))
        two_node_store.elsewhere(Write.put(ResourceKey("Node", f"n{number}"), document))
    watch()
    assert 7 / 100 in ranges


def of_run(tmp_path):
    return LastValid(Files(), SILENT, str(tmp_path), VIEW_FILE)


def test_a_restart_keeps_last_valid_versions(two_node_store, tmp_path, watch):
    """For the run after the next, too."""
    sources = watch(of_run(tmp_path))
    before = sources.snapshot()
    assert not (tmp_path / VIEW_FILE).exists()
    two_node_store.elsewhere(Write.put(OTHER, WRONG_NODE), Write.put(POOL, WRONG_POOL))
    until(lambda: len(sources.snapshot().problems) == 2, "both are refused")
    assert (tmp_path / VIEW_FILE).stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        later = watch(of_run(tmp_path)).snapshot()
        assert (later.nodes, later.pools) == (before.nodes, before.pools)
        assert not later.unread and not later.cut_off
        assert all(text.endswith("last valid version stays in force") for text in later.problems), later.problems
    two_node_store.elsewhere(Write.put(OTHER, encode_node(node("n2", "10.0.0.3/24"))), Write.put(POOL, named_pool()))
    until(lambda: not sources.snapshot().problems, "both can be read")
    assert not (tmp_path / VIEW_FILE).exists()
    two_node_store.elsewhere(Write.put(OTHER, WRONG_NODE))
    assert watch(of_run(tmp_path)).snapshot().cut_off == ("n2",)


def test_a_version_of_an_earlier_run_does_not_outlive_the_record(two_node_store, tmp_path, watch):
    sources = watch(of_run(tmp_path))
    two_node_store.elsewhere(Write.put(OTHER, WRONG_NODE))
    until(lambda: sources.snapshot().problems, "it is refused")
    two_node_store.elsewhere(Write.remove(OTHER))
    later = watch(of_run(tmp_path))
    assert "n2" not in later.snapshot().nodes
    two_node_store.elsewhere(Write.put(OTHER, WRONG_NODE))
    until(lambda: later.snapshot().unread == {OTHER}, "it is there again")
    assert "n2" not in later.snapshot().nodes


def test_what_is_readable_of_a_node_counts(two_node_store, watch):
    two_node_store.elsewhere(Write.put(OTHER, HALF_NODE))
    sources = watch()
    snapshot = sources.snapshot()
    assert snapshot.unread == {OTHER} and snapshot.parts == {"n2": {ip_address("10.0.0.7")}} and not snapshot.cut_off
    two_node_store.elsewhere(Write.put(OTHER, WRONG_NODE))
    until(lambda: sources.snapshot().cut_off == ("n2",), "nothing can be read")
    assert any("Node n2" in text and "drops its VXLAN and IPIP" in text for text in sources.snapshot().problems)
    two_node_store.elsewhere(Write.put(OTHER, encode_node(node("n2", "10.0.0.2/24"))))
    until(lambda: "n2" in sources.snapshot().nodes, "it is mended")
    assert not sources.snapshot().parts and not sources.snapshot().problems


_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(["10.0.0.1/24", "0.0.0.0/0", "fd00::1", "::/0"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["spec", "bgp", "ipv4Address", "ipv6Address"]), inner, max_size=3)
    ),
)


@given(_values, _values)
def test_parts_of_any_document(four, six):
    """Never an error, never more than an address of each family."""
    found = parse_node_addresses({"spec": {"bgp": {"ipv4Address": four, "ipv6Address": six}}})
    assert sorted(address.version for address in found) in ([], [4], [6], [4, 6])
    for document in ({"spec": four}, {"spec": {"bgp": six}}):
        assert len(parse_node_addresses(document)) <= 2
