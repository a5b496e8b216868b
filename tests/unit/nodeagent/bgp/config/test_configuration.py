"""A node's BGPConfiguration, beside what the agent does."""

import pytest

from cni_calico.nodeagent.bgp.config.configuration import BgpConfiguration, find_unequal_priorities


@pytest.mark.parametrize(
    ("priorities", "said"),
    [
        (None, []),
        ((1024, 2000), []),
        ((512, 2000), ["ipv4NormalRoutePriority is 1024, and FelixConfiguration's is 512: each workload is announced"]),
        ((1024, 2001), ["ipv6NormalRoutePriority is 2000, and FelixConfiguration's is 2001: they count for less"]),
        ((1, 1), ["ipv4NormalRoutePriority is 1024", "ipv6NormalRoutePriority is 2000"]),
    ],
)
def test_priorities_have_to_be_equal(priorities, said):
    found = find_unequal_priorities(BgpConfiguration(normal_priority_v6=2000), priorities)
    assert [problem.severity for problem in found] == ["warning"] * len(said)
    for problem, text in zip(found, said, strict=True):
        assert text in problem.text
