"""The version before is stopped and this one started under traffic: nothing is lost, nothing forbidden passes, and the
kernel keeps every rule that it has, unless what is denied is recorded from now on.

Rule: the version before is that of tests/netns/policing/agents.py.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP
from tests.deadlines import until
from tests.netns.policing.agents import ROOT, agent
from tests.netns.policing.lab import ALLOW_80, DENY_B, NODE, Lab, lab, traffic
from tests.unrecorded import UNRECORDED

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

LONG = "a long policy"
NFT_COUNTERS = re.compile(r"packets \d+ bytes \d+")
KINDS_OF_RULES = [
    {"action": "Log", "protocol": "TCP", "destination": {"ports": [1, 2, "3:9"], "notPorts": [4]}},
    {"action": "Allow", "protocol": "TCP", "source": {"selector": "who == 'p'", "notNets": ["198.51.100.9/32"]}},
    {"action": "Allow", "protocol": "UDP", "source": {"ports": [f"{100 + 2 * i}" for i in range(40)]}},
    {"action": "Deny", "protocol": "ICMP", "icmp": {"type": 8}},
    {"action": "Allow", "ipVersion": 6, "protocol": "ICMPv6"},
    {"action": "Deny", "notProtocol": "SCTP", "destination": {"notSelector": "app == 'a'", "nets": ["10.9.0.0/16"]}},
    {"action": "Pass"},
]


def fill(made: Lab) -> None:
    """Two workloads of which one may ask the other at one port, and a policy with a rule of every other kind."""
    made.put("Node", NODE, {"bgp": {"ipv4Address": "192.0.2.1/24"}})
    for number, name in enumerate("ab", start=2):
        made.add(name, f"10.0.1.{number}", f"fd00::{number}", app=name)
    made.put_profile("kns.default", pcns__name="default")
    partners = ["198.51.100.0/24", "203.0.113.7/32", "2001:db8::/64"]
    made.put("NetworkSet", "partners", {"nets": partners}, "default", who="p")
    made.put("NetworkPolicy", "default.first", ALLOW_80, "default")
    made.put("NetworkPolicy", "default.last", DENY_B | {"order": 9000}, "default")
    kinds = {"order": 50, "selector": "app == 'b'", "types": ["Ingress", "Egress"], "ingress": KINDS_OF_RULES[:-1]}
    made.put("GlobalNetworkPolicy", "default.kinds", {**kinds, "egress": KINDS_OF_RULES})


def kernel(made: Lab) -> str:
    """All rules; with nf_tables also the numbers of the objects, which show what was made again."""
    if "FELIX_NFTABLESMODE" in made.always:
        return made.ruleset()
    return NFT_COUNTERS.sub("", made.host.run("nft", "-a", "list", "ruleset").stdout)


@pytest.mark.parametrize("mode", ["Enabled", "Disabled", LONG])
def test_from_the_version_before(tmp_path: Path, earlier: Path, mode: str) -> None:
    """A policy of many rules is in parts, which are made anew beside the old ones: content gives them their names. It
    is the one with which this version's own defaults are in force, and then the version before again.
    """
    with lab(tmp_path) as made, ExitStack() as stack:
        made.always = {"FELIX_NFTABLESMODE": "Disabled"} if mode == "Disabled" else {}
        made.always |= {} if mode == LONG else UNRECORDED
        fill(made)
        if mode == LONG:
            nets = [f"10.8.{i // 250}.{i % 250}/32" for i in range(700)]
            rules = [{"action": "Deny", "protocol": "UDP", "source": {"nets": [net]}} for net in nets]
            made.put("GlobalNetworkPolicy", "default.long", {"order": 1, "selector": "app == 'b'", "ingress": rules})
        end = stack.enter_context(agent(made, earlier))
        assert made.passes("a", "b", 80) and not made.passes("a", "b", 81)
        before = kernel(made)
        with traffic(made, "a", "b", allowed=80, forbidden=81) as counts:
            until(lambda: counts.sent > 200, "packets beside the version before")
            end()
            end = stack.enter_context(agent(made, ROOT))
            sent = counts.sent
            until(lambda: counts.sent > sent + 200, "packets beside this version")
            if mode == LONG:
                assert f"group {DENIED_GROUP}" in made.ruleset() and f"group {ALLOWED_GROUP}" not in made.ruleset()
                end()
                stack.enter_context(agent(made, earlier))
                sent = counts.sent
                until(lambda: counts.sent > sent + 200, "packets beside the version before, again")
                until(lambda: f"group {DENIED_GROUP}" not in made.ruleset(), "nothing is reported any more")
        assert (counts.allowed_arrived, counts.forbidden_arrived) == (counts.sent, 0), counts.missing[:20]
        assert mode == LONG or kernel(made).splitlines() == before.splitlines()
