"""Which of several pools gives addresses, and which may go."""

from ipaddress import ip_network
from itertools import permutations

import pytest

from cni_calico.controllers.conditions.pools import DISABLED, OK, OVERLAP, TERMINATING, desired_pools
from cni_calico.model.keys import ResourceKey

GOING = "2026-08-02T00:00:00Z"


def pool(cidr, created="2026-08-01T00:00:00Z", allocatable=None, going=False, **spec):
    metadata = {"creationTimestamp": created} | ({"deletionTimestamp": GOING} if going else {})
    said = [] if allocatable is None else [{"type": "Allocatable", "status": str(allocatable)}]
    return {"metadata": metadata, "spec": {"cidr": cidr, **spec}, "status": {"conditions": said}}


def reasons(blocks=(), **pools):
    """Name -> reason of the condition, with "!" if the pool is held; the same whatever order the pools come in."""
    given = [(ResourceKey("IPPool", name), document) for name, document in pools.items()]
    answers = []
    for order in permutations(given):
        wishes = desired_pools(dict(order), list(map(ip_network, blocks)))
        answers.append({key.name: wish.condition.reason + "!" * wish.holds for key, wish in wishes.items()})
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def test_pools_that_do_not_overlap_give_addresses_and_are_held():
    assert reasons(a=pool("10.0.0.0/16"), b=pool("10.1.0.0/16"), c=pool("fd00::/64")) == {
        "a": "OK!",
        "b": "OK!",
        "c": "OK!",
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pool("10.0.0.0/16", "2026-09-01T00:00:00Z", True), pool("10.0.0.0/17", going=True)),
        (pool("10.0.0.0/16", "2026-09-01T00:00:00Z", True), pool("10.0.0.0/17", allocatable=False)),
        (pool("10.0.0.0/16", "2026-09-01T00:00:00Z", False), pool("10.0.0.0/17")),
        (pool("10.0.0.0/16"), pool("10.0.0.0/17", "2026-09-01T00:00:00Z")),
        (pool("10.0.0.0/16"), pool("10.0.0.0/17")),
    ],
    ids=["in use before going", "in use before not in use", "known before new", "older", "by name"],
)
def test_of_pools_that_overlap_one_gives_addresses(first, second):
    found = reasons(a=first, b=second)
    assert found == {"a": "OK!", "b": "Terminating" if "deletionTimestamp" in second["metadata"] else "CIDROverlap"}


def test_a_pool_that_is_going_is_in_the_way_and_a_disabled_one_is_not():
    assert reasons(going=pool("10.0.0.0/16", going=True), new=pool("10.0.1.0/24")) == {
        "going": "Terminating",
        "new": "CIDROverlap",
    }
    assert reasons(off=pool("10.0.0.0/16", disabled=True, allocatable=True), new=pool("10.0.1.0/24")) == {
        "off": "PoolDisabled",
        "new": "OK!",
    }


def test_a_pool_goes_when_no_block_lies_in_it():
    going = pool("10.0.0.0/24", going=True)
    assert reasons(["10.0.0.64/26", "fd00::/122"], a=going) == {"a": "Terminating!"}
    assert reasons(["10.0.1.0/26", "fd00::/122"], a=going) == {"a": "Terminating"}


@pytest.mark.parametrize("cidr", [None, "", "10.0.0.0/99", 7, {}])
def test_a_pool_whose_network_cannot_be_read_is_left_alone(cidr):
    assert reasons(bad=pool(cidr), good=pool("10.0.0.0/16")) == {"good": "OK!"}
    assert desired_pools({ResourceKey("IPPool", "bad"): {"metadata": {}, "spec": None}}, ()) == {}


def test_the_words_are_upstreams():
    assert (OK.message, TERMINATING.message) == ("IPPool is available for IP allocation.", "IPPool is being deleted")
    assert OVERLAP.message.startswith("CIDR overlaps another pool; disabled") and not DISABLED.is_true
