"""A rule that lists much becomes few rules of the packet filter, and decides about packets as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import lab

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

NAMES = 700
# more than one match of iptables holds, as many as make nf_tables use ranges
NUMBERS = [7000, "7100:7120", *range(9001, 9161, 4)]
SEEN = (7000, 7110, 9005)


def side(beginning: str, numbers: list[Any], app: str) -> dict[str, Any]:
    return {"ports": [*(f"{beginning}{i:03}" for i in range(NAMES)), *numbers], "selector": f"app == '{app}'"}


def policy(source: dict[str, Any], destination: dict[str, Any], **more: Any) -> dict[str, Any]:
    rule = {"action": "Allow", "protocol": "UDP", "source": source, "destination": destination}
    return {"selector": "app == 'b'", "types": ["Ingress"], "ingress": [rule], **more}


def rules_of(listed: str, chain: str) -> int:
    """In one family."""
    if "table ip calico-policy" in listed:
        found = re.search(rf"chain {re.escape(chain)} {{\n(.*?)\n\t}}", listed.split("table ip calico-policy")[1], re.S)
        return len(found[1].splitlines()) if found else 0
    return listed.split("*nat")[0].count(f"-A cali-p-{chain} ") if "*nat" in listed else 0


@pytest.mark.parametrize("by", ["nftables", "iptables"])
def test_names_and_numbers_on_both_sides_with_networks(tmp_path: Path, by: str) -> None:
    """Seven hundred names on each side, of an 11 KB policy, made 490,000 rules, and the agent ended."""
    with lab(tmp_path) as made:
        if by == "iptables":
            made.always = {"FELIX_NFTABLESMODE": "Disabled"}
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        a = made.connect("a", "calia", "10.65.0.1", "fd00::1")
        b = made.connect("b", "calib", "10.65.0.2", "fd00::2")
        c = made.connect("c", "calic", "10.66.0.3", "fd00:1::3")  # only networks of a set have it
        ports = {"a": ("s000", 5000), "b": ("d699", 6000)}
        for one in (a, b):
            name, port = ports[one.name]
            made.put_endpoint(one)
            assert one.document is not None
            one.document["ports"] = [
                {"name": name, "protocol": "UDP", "port": port},
                {"name": "else", "protocol": "UDP", "port": port + 1},
            ]
            made.put_endpoint(one, app=one.name)
        made.put_endpoint(c)
        made.put("GlobalNetworkSet", "a", {"nets": ["10.66.0.0/24", "fd00:1::/64"]}, app="a")
        made.put("GlobalNetworkSet", "b", {"nets": ["10.67.0.0/24", "fd00:2::/64"]}, app="b")
        made.put("GlobalNetworkPolicy", "both", policy(side("s", [], "a"), side("d", [], "b")))
        made.start()
        assert made.until_in_force(policies=1)["by"] == by
        for version in (4, 6):
            assert made.passes("a", "b", 6000, sport=5000, version=version)
            assert not made.passes("a", "b", 6001, sport=5000, version=version)
            assert not made.passes("a", "b", 6000, sport=5001, version=version)
        made.put("GlobalNetworkPolicy", "both", policy(side("s", NUMBERS, "a"), side("d", NUMBERS, "b")))
        until(lambda: made.passes("a", "b", 7000, sport=5000), "numbers count")
        before = len(made.log())
        for version in (4, 6):
            for sport in (5000, *SEEN):
                for port in (6000, *SEEN):
                    made_it = made.passes("a", "b", port, sport=sport, version=version)
                    assert made_it, (by, version, sport, port, made.log()[before:], made.ruleset())
            assert made.passes("c", "b", 6000, sport=7000, version=version)
            assert not made.passes("c", "b", 6000, sport=5000, version=version)  # that name is another one's
            for sport, port in ((5000, 6001), (5001, 6000), (7001, 6000), (9006, 9005), (7110, 7121)):
                assert not made.passes("a", "b", port, sport=sport, version=version), (sport, port)
        not_ports = {"ports": ["d699", *NUMBERS], "notPorts": ["d699", *NUMBERS[2:]], "selector": "app == 'b'"}
        made.put("GlobalNetworkPolicy", "both", policy(side("s", NUMBERS, "a"), not_ports, order=1))
        until(lambda: not made.passes("a", "b", 6000, sport=5000), "notPorts count")
        assert made.passes("a", "b", 7110, sport=9005) and not made.passes("a", "b", 9005, sport=9005)
        listed = made.ruleset()
        count = (
            len(re.findall(r"-A cali-p-pi-gnp/both ", listed)) / 2
            if by == "iptables"
            else rules_of(listed, "pi-gnp/both")
        )
        assert 0 < count <= 16, listed
        assert made.standing()["problems"] == [] or by == "iptables"
