"""Arbitrary JSON only ever raises CorruptRecord, and whatever can be read is written back as it was."""

import copy
import json
import pathlib
from ipaddress import IPv4Network, IPv6Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents import codec
from cni_calico.model.keys import (
    CLUSTER_KINDS,
    NAMESPACED_KINDS,
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    ResourceKey,
    etcd_path,
    parse_path,
)

VECTORS = pathlib.Path(__file__).parents[3] / "golden" / "vectors"

KEYS = [
    BlockKey(IPv4Network("10.0.0.0/30")),
    AffinityKey("n", IPv4Network("10.0.0.0/30")),
    HandleKey("h"),
    IPAMConfigKey(),
    *(ResourceKey(kind, "x") for kind in CLUSTER_KINDS),
    *(ResourceKey(kind, "x", "ns") for kind in NAMESPACED_KINDS),
]
NAMES = sorted(
    {
        "cidr affinity allocations unallocated attributes sequenceNumber sequenceNumberForAllocation deleted handle_id",
        "secondary hostAffinity strictAffinity state block kind metadata spec status name namespace labels bgp",
        "annotations blockSize conditions type ports port ipNATs internalIP ipNetworks asNumber ipv4Address 0 7 zz",
    }
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["", "x", "10.0.0.0/30", "10.0.0.1", "fd00::/64", "1.10", "Never", "False", "Allocatable", "host:n"]
    ),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(" ".join(NAMES).split()), inner, max_size=5)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("key", KEYS, ids=codec.describe)
def test_arbitrary_json(key):
    @settings(max_examples=30, deadline=None)
    @given(values)
    def run(document):
        try:
            record = codec.decode(key, document)
        except CorruptRecord as e:
            assert codec.describe(key) in str(e)
        else:
            assert codec.encode(record) == document

    run()


def golden():
    kvs = json.loads((VECTORS / "etcd-dump-07-add-borrowed-ip.json").read_text())["kvs"]
    found = {path: kv["value"] for path, kv in kvs.items()}
    found["/calico/resources/v3/projectcalico.org/nodes/full"] = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "Node",
        "metadata": {"name": "full", "labels": {"a": "b"}},
        "spec": {
            "addresses": [{"address": "10.0.0.1/24", "type": "CalicoNodeIP"}],
            "bgp": {"asNumber": "1.10", "ipv4Address": "10.0.0.1/24", "ipv4IPIPTunnelAddr": "10.65.0.1"},
            "ipv6VXLANTunnelAddr": "fd00::1",
            "orchRefs": [{"nodeName": "full", "orchestrator": "k8s"}],
        },
    }
    found["/calico/resources/v3/projectcalico.org/workloadendpoints/ns/full"] = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "WorkloadEndpoint",
        "metadata": {"name": "full", "namespace": "ns"},
        "spec": {
            "ipNATs": [{"internalIP": "10.0.0.1", "externalIP": "1.2.3.4", "later": 1}],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "later": {}}],
            "ipv4Gateway": "169.254.1.1",
        },
    }
    return found


GOLDEN = golden()


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_real_records_with_one_value_changed(data):
    path = data.draw(st.sampled_from(sorted(GOLDEN)))
    document = copy.deepcopy(GOLDEN[path])
    at = data.draw(st.sampled_from(sorted(places(document), key=repr)[:400]))
    if at:
        parent = document
        for step in at[:-1]:
            parent = parent[step]
        if data.draw(st.booleans()):
            parent[at[-1]] = data.draw(values)
        else:
            del parent[at[-1]]
    try:
        record = codec.decode(parse_path(path), document)
    except CorruptRecord:
        return
    assert codec.encode(record) == document


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.builds(
            AffinityKey,
            st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True),
            st.builds(
                lambda address, length: IPv4Network((address, length), strict=False),
                st.integers(0, 2**32 - 1),
                st.integers(20, 32),
            ),
            st.sampled_from(["host", "virtual"]),
        ),
        st.builds(
            lambda address: BlockKey(IPv6Network((address, 122), strict=False)),
            st.integers(0, 2**128 - 1),
        ),
        st.builds(HandleKey, st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,40}", fullmatch=True)),
        st.just(IPAMConfigKey()),
        st.builds(
            ResourceKey,
            st.sampled_from(sorted(CLUSTER_KINDS)),
            st.from_regex(r"[a-z0-9.-]+", fullmatch=True),
            st.just(""),
        ),
        st.builds(
            ResourceKey,
            st.sampled_from(sorted(NAMESPACED_KINDS)),
            st.from_regex(r"[a-z0-9.-]+", fullmatch=True),
            st.from_regex(r"[a-z0-9-]+", fullmatch=True),
        ),
    )
)
def test_keys_round_trip(key):
    assert parse_path(etcd_path(key)) == key
