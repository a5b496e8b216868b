"""What is kept of a pod as bytes is what was known of it."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ipam.lost.packing import pack, unpack
from cni_calico.ipam.lost.pods import Pod

ADDRESSES = st.one_of(st.integers(0, 2**32 - 1).map(IPv4Address), st.integers(0, 2**128 - 1).map(IPv6Address))
CONTAINERS = st.one_of(
    st.text(max_size=80), st.binary(max_size=40).map(bytes.hex), st.binary(min_size=32, max_size=32).map(bytes.hex)
)
PODS = st.builds(Pod, CONTAINERS, st.frozensets(ADDRESSES, max_size=5), st.booleans())


@given(PODS)
def test_nothing_is_lost(pod: Pod) -> None:
    assert unpack(pack(pod)) == pod


@pytest.mark.parametrize("container", ["", "0" * 64, "A" * 64, "0" * 63, "0 " * 32, "\udcff"])
def test_identities_that_only_look_usual(container: str) -> None:
    assert unpack(pack(Pod(container))).container_id == container


def test_a_usual_pod_takes_forty_bytes() -> None:
    assert len(pack(Pod("ab" * 32, frozenset((IPv4Address("10.0.0.1"),))))) < 40
