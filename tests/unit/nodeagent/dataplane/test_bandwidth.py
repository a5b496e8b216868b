"""Limits of bandwidth as numbers for the kernel."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.host import HostInterface, TokenBucket
from cni_calico.model.qos import BOUNDS
from cni_calico.nodeagent.dataplane.bandwidth import (
    NO_LIMITS,
    DesiredBandwidth,
    Shaping,
    desired_bandwidth,
    device_name,
    with_changed,
)
from tests.unit.nodeagent.fabric import workload

POD = workload("w", "calia", "10.65.1.5/32")
VETH = HostInterface(9, "calia", True, 1450, kind="veth")
TICKS_PER_S = 15_625_000


def desired(controls: object, *more: HostInterface, mtu: int = 1450) -> tuple[DesiredBandwidth, list[str]]:
    return desired_bandwidth({"calia": replace(POD, qos_controls=controls)}, [replace(VETH, mtu=mtu), *more])


def bucket(**controls: int) -> TokenBucket:
    found = desired(controls)[0].wanted["calia"].ingress
    assert found is not None
    return found


def test_without_limits_there_is_nothing() -> None:
    for controls in (None, {}, {"ingressPacketRate": 5}, {"egressBurst": 10**6}):
        assert desired(controls) == (NO_LIMITS, [])


def test_an_interface_made_again_is_another_one() -> None:
    controls = {"ingressBandwidth": 10**6}
    found, again = (
        desired_bandwidth({"calia": replace(POD, qos_controls=controls)}, [replace(VETH, index=index)])[0]
        for index in (9, 10)
    )
    assert found.wanted.keys() == again.wanted.keys() and found != again


def test_the_name_of_the_device() -> None:
    """Upstream's: its agent finds it."""
    assert device_name("cali0123456789a") == "bwcali627a0cdce"


def test_a_burst_of_a_tenth_of_a_second() -> None:
    assert bucket(ingressBandwidth=80_000_000) == TokenBucket(10**7, 1_250_000, TICKS_PER_S // 10)
    small = bucket(ingressBandwidth=1000)
    assert small.rate == 125 and small.buffer == 4 * 1450 * TICKS_PER_S // 125


def test_a_burst_smaller_than_a_packet() -> None:
    found, said = desired({"egressBandwidth": 8000, "egressBurst": 1000})
    egress = found.wanted["calia"].egress
    assert egress is not None and egress.buffer == 1464 * TICKS_PER_S // 1000
    assert said == ["the egressBurst of calia is smaller than one packet, which would never pass: 11712 bits are used"]


def test_a_peak_rate() -> None:
    found = bucket(ingressBandwidth=8 * 10**6, ingressPeakrate=16 * 10**6)
    assert (found.peak, found.mtu) == (2 * 10**6, 1464 * TICKS_PER_S // (2 * 10**6) + 1)
    assert found.limit == 65536 + 1464
    for no_higher in (8000, 8007):  # in whole bytes, as the kernel has them
        assert bucket(ingressBandwidth=8000, ingressPeakrate=no_higher).peak == 0


def test_devices_that_no_limit_wants() -> None:
    devices = [
        HostInterface(20 + i, name, True, 1450, kind="ifb") for i, name in enumerate(("bwcali000000000", "ifb0"))
    ]
    own = HostInterface(30, device_name("calia"), True, 1450, kind="ifb")
    assert desired(None, *devices)[0] == DesiredBandwidth({}, frozenset({"bwcali000000000"}), frozenset({"calia"}))
    assert desired({"ingressBandwidth": 8000}, own)[0].strays == {own.name}
    assert desired({"egressBandwidth": 8000}, own)[0].strays == set()


@given(
    *[st.lists(st.sampled_from(({}, {"ingressBandwidth": 8000}, {"egressBandwidth": 8000})), min_size=3, max_size=3)]
    * 2,
    st.sets(st.integers(0, 2)),
)
def test_some_changed_limits_are_as_all_looked_at_again(
    before: list[dict[str, int]], after: list[dict[str, int]], changed: set[int]
) -> None:
    """Except that a device that nobody wants is known without being listed."""
    links = [HostInterface(9 + i, f"cali{i}", True, 1450, kind="veth") for i in range(3)]
    pods = {f"cali{i}": replace(POD, interface_name=f"cali{i}", qos_controls=one) for i, one in enumerate(before)}
    former = desired_bandwidth(pods, links)[0]
    made = [
        HostInterface(20 + i, device_name(f"cali{i}"), True, 1450, kind="ifb")
        for i, one in enumerate(before)
        if "egressBandwidth" in one
    ]
    new = {f"cali{i}": replace(POD, interface_name=f"cali{i}", qos_controls=after[i]) for i in changed}
    found = with_changed(former, new, [links[i] for i in sorted(changed)])
    whole = desired_bandwidth({**pods, **new}, [*links, *made])[0]
    assert (found.wanted, found.strays) == (whole.wanted, whole.strays)
    assert new.keys() <= found.workloads or found == NO_LIMITS


@given(
    st.dictionaries(
        st.sampled_from(sorted(BOUNDS)),
        st.integers(-1, 2**70) | st.text(max_size=3) | st.none() | st.floats() | st.lists(st.integers()),
    ),
    st.integers(68, 65535),
)
def test_whatever_a_record_says(controls: dict[str, object], mtu: int) -> None:
    """The kernel's numbers fit into their fields, and a whole packet always passes."""
    found, said = desired(controls, mtu=mtu)
    shaping = found.wanted.get("calia", Shaping(VETH.index, mtu))
    for way, limit in (("ingress", shaping.ingress), ("egress", shaping.egress)):
        bits = controls.get(f"{way}Bandwidth")
        low, high = BOUNDS[f"{way}Bandwidth"]
        assert (limit is not None) == (type(bits) is int and low <= bits <= high)
        if limit is None:
            continue
        assert isinstance(bits, int) and limit.rate == bits // 8
        assert limit.buffer * limit.rate >= (mtu + 14) * TICKS_PER_S or limit.buffer == 2**32 - 1
        assert 65536 < limit.limit < 2**32 and 0 < limit.buffer < 2**32 and 0 <= limit.mtu < 2**32
        assert (limit.peak > limit.rate or limit.peak == 0) and bool(limit.mtu) == bool(limit.peak)
    assert len(said) <= 2
