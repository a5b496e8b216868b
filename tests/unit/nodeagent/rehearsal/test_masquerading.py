"""Whether what nft prints is what would be set."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_calico.nodeagent.dataplane.desired import Nat
from cni_calico.nodeagent.dataplane.masquerade_rules import render_nftables
from cni_calico.nodeagent.rehearsal.masquerading import same_rules

NAT = Nat(4, (ip_network("10.65.0.0/16"), ip_network("10.66.0.0/16")), (ip_network("10.0.0.0/8"),))
PRINTED = """\
table ip calico {
\tset nat-sources {
\t\ttype ipv4_addr
\t\tflags interval
\t\telements = { 10.66.0.0/16,
\t\t\t     10.65.0.0/16 }
\t}

\tset nat-exclusions {
\t\ttype ipv4_addr
\t\tflags interval
\t\telements = { 10.0.0.0/8 }
\t}

\tchain nat-outgoing {
\t\ttype nat hook postrouting priority srcnat; policy accept;
\t\tip saddr @nat-sources ip daddr != @nat-exclusions masquerade fully-random
\t}
}
"""


def test_the_same() -> None:
    assert same_rules(PRINTED, render_nftables(NAT))


@pytest.mark.parametrize(
    ("here", "there"), [("10.66.0.0/16", "10.67.0.0/16"), (" fully-random", ""), ("10.0.0.0/8", ""), (PRINTED, "")]
)
def test_another(here: str, there: str) -> None:
    assert not same_rules(PRINTED.replace(here, there), render_nftables(NAT))
