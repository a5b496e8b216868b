"""Which of several kernel routes to one destination goes."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.netlink.routes import TABLE_MAIN, Route
from cni_calico.nodeagent.bgp.bird.control import BirdReply
from cni_calico.nodeagent.bgp.bird.leftovers import parse_metric, select_leftovers, select_several
from cni_calico.nodeagent.bgp.bird.process import RTPROT_BIRD

NETS = [ip_network(n) for n in ("10.65.0.0/26", "10.65.1.0/26", "10.65.0.5/32", "fd65::/122")]
routes = st.lists(
    st.builds(
        Route,
        dst=st.sampled_from(NETS),
        metric=st.sampled_from([0, 512, 1024]),
        protocol=st.sampled_from([RTPROT_BIRD, 80, 3]),
        table=st.sampled_from([TABLE_MAIN, 100]),
    ),
    max_size=12,
    unique_by=lambda r: (r.dst, r.metric, r.table),
)


@given(routes, st.dictionaries(st.sampled_from(NETS[:3]), st.sampled_from([0, 512, 1024])))
def test_what_is_left_is_what_is_wanted(kernel: list[Route], wanted: dict) -> None:
    several = select_several(kernel)
    gone = select_leftovers(several, wanted)
    for route in gone:
        assert (route.protocol, route.table, route.dst.version) == (RTPROT_BIRD, TABLE_MAIN, 4)
        assert route.metric != wanted[route.dst]
    rest = [r for r in kernel if r not in gone]
    for dst, metric in wanted.items():
        ours = [r for r in rest if r.dst == dst and r.protocol == RTPROT_BIRD and r.table == TABLE_MAIN]
        if any(r.metric == metric for r in ours):
            assert len(ours) == 1, "the wanted one alone"
        elif ours:
            assert not [r for r in gone if r.dst == dst], "never the last one BIRD may still be about to replace"


def test_metrics_in_replies() -> None:
    head = ((1007, "Table master4:"), (1007, "10.65.9.9/32 unicast [Mesh] * (100)"), (1008, "\tType: BGP univ"))
    assert parse_metric(BirdReply((*head, (1012, "\tKernel.metric: 1024"), (0, "")))) == 1024
    assert parse_metric(BirdReply((*head, (0, "")))) == 0
    assert parse_metric(BirdReply(((8001, "Network not found"),))) is None
    assert parse_metric(BirdReply(((1007, "Table master4:"), (0, "")))) is None
