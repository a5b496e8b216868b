"""What our rules have dropped, and how many rules a chain has, as iptables-save prints it."""

from __future__ import annotations

from cni_calico.kernel.filter.legacy.script import count_rules, parse_dropped

SAVED = r"""*raw
:PREROUTING ACCEPT [5:400]
:cali-p-spoofing - [0:0]
[9:900] -A PREROUTING -m comment --comment "cali:01" -j cali-p-at-PREROUTING
[3:90] -A cali-p-spoofing -i cali+ -m comment --comment "cali:02" -m comment --comment "a \"so\" workload\'s" -j DROP
[0:0] -A cali-p-spoofing -i tap+ -m comment --comment "cali:03" -m comment --comment "never" -j DROP
[4:90] -A cali-p-spoofing -m comment --comment "cali:04" -m comment --comment "passes" -j RETURN
COMMIT
*filter
[2:60] -A cali-p-tunnels -p udp -m comment --comment "cali:05" -m comment --comment "a \"so\" workload\'s" -j DROP
[7:60] -A theirs -m comment --comment "a \"so\" workload\'s" -j DROP
[7:60] -A cali-p-x -j DROP
COMMIT
"""


def test_packets_are_counted_by_the_comments_of_rules_that_drop() -> None:
    found = parse_dropped(SAVED)
    assert found["""a "so" workload's"""] == 5
    assert not found.keys() & {"never", "passes"}
    assert not parse_dropped("")


DENIED = r"""*mangle
:cali-p-pi-gnp/x - [0:0]
-A cali-p-pi-gnp/x -m comment --comment "cali:01" -j DROP
COMMIT
*filter
:cali-p-pi-gnp/x - [0:0]
:cali-p-pi-gnp/y - [0:0]
-A cali-p-pi-gnp/x -m comment --comment "cali:01" -m comment --comment "\" -j ACCEPT" -j NFLOG --nflog-prefix "-j DROP"
-A cali-p-pi-gnp/x -m comment --comment "cali:02" -m comment --comment "a \" -j NFLOG" -j DROP
-A cali-p-pi-gnp/y -m comment --comment "cali:03" -j MARK --set-xmark 0x80000/0x80000
-A cali-p-pi-gnp/y -p tcp -m comment --comment "cali:04" -j cali-p-of-0123456789abcdef
-A cali-p-pi-gnp/y -m mark --mark 0x80000/0x80000 -m comment --comment "cali:05" -g cali-p-do-40000-40000
-A cali-p-pi-gnp/y -m comment --comment "cali:06" -j LOG --log-prefix "x: -j NFLOG "
-A cali-p-pi-gnp/y -m comment --comment "cali:07" -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -m comment --comment "cali:08" -j cali-p-pi-gnp/x
COMMIT
"""


def test_what_one_rule_needs_in_iptables_counts_once() -> None:
    """A policy that denies has one rule, whether that is reported or not, and in whatever tables it is."""
    x, y = "cali-p-pi-gnp/x", "cali-p-pi-gnp/y"
    assert count_rules(DENIED, {x, y, "cali-p-z"}) == {x: 1, y: 3}
    assert not count_rules(DENIED, ()) and not count_rules("", {x})
