"""What our rules have dropped, as iptables-save -c prints it."""

from __future__ import annotations

from cni_calico.kernel.filter.legacy.script import parse_dropped

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
