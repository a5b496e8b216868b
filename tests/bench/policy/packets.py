#!/usr/bin/env python3
"""Packets and policies: what a connection's first packet costs, and whether any is lost or passes while they change.

    packets.py [--packets 4000] [--rounds 5] [--changes 10000] [--flows]

The cost: four nodes in turn, with connection tracking alone, with the engine's rules for twenty policies of ten rules
each, and with upstream's for the same (upstream_rules.py), by iptables and by nft. Of each the median of the medians.

The changes: a packet to an allowed and one to a forbidden port, each of a new connection, as fast as one thread sends
them, while policies come and go, the deciding policy is written again, a set gets and loses its member and the workload
a label. Each change is in force (a probe says so) before the next one. With --flows only these, while a recorder beside
the engine records all of it and judges each report by the rules in force. Exits with 1 if an allowed packet was lost or
a forbidden one passed, and if a report was lost or names another rule than those that were in force. Needs root, nft,
iptables and ipset (tests/setup/lab.sh).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.policy import upstream_rules
from tests.bench.policy.changes import packet_us
from tests.deadlines import until
from tests.netns.flows.test_judging import Judged, beside
from tests.netns.policing.lab import Counts, Lab, lab, traffic

PROBING, PROBED = "10.65.0.2", "10.65.0.1"
ALLOWED, FORBIDDEN = 7000, 7001
BLOCK = 1000  # changes of one run of the engine
LIMIT_S = 120.0


def node(stack: ExitStack) -> Lab:
    made = stack.enter_context(lab(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cct-packets-")))))
    made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
    made.put_profile("kns.default")
    made.add("probing", PROBING, app="client")
    made.add("probed", PROBED, app="server")
    return made


def server(order: int, rules: list[dict[str, Any]], selector: str = "app == 'server'") -> dict[str, Any]:
    return {"tier": "default", "order": order, "selector": selector, "types": ["Ingress"], "ingress": rules}


def udp(action: str, *ports: int | str, **source: Any) -> dict[str, Any]:
    more = {"source": source} if source else {}
    return {"action": action, "protocol": "UDP", **more, "destination": {"ports": list(ports)}}


# -- cost -------------------------------------------------------------------------------------------------------------


def by_engine(made: Lab) -> None:
    for rule in range(upstream_rules.RULES):
        nets = [f"{address}/32" for address in upstream_rules.members(rule)]
        made.put("GlobalNetworkSet", f"none{rule}", {"nets": nets}, none=f"n{rule}")
    for number in range(upstream_rules.POLICIES):
        rules = []
        for rule in range(upstream_rules.RULES):
            one, low, high = upstream_rules.numbers(rule)
            rules.append(udp("Allow", one, f"{low}:{high}", selector=f"none == 'n{rule}'"))
        if number == upstream_rules.POLICIES - 1:
            rules.append({"action": "Allow", "protocol": "UDP"})
        made.put("GlobalNetworkPolicy", f"first{number}", server(1 + number, rules))
    made.start(FELIX_IPV6SUPPORT="false")
    made.until_in_force(policies=upstream_rules.POLICIES)


def by_iptables(made: Lab) -> None:
    sets, rules = upstream_rules.by_iptables("caliprobing", "caliprobed")
    _load(made, sets, "ipset", "restore")
    _load(made, rules, "iptables-legacy-restore")


def by_nft(made: Lab) -> None:
    _load(made, upstream_rules.by_nft("caliprobing", "caliprobed"), "nft", "-f", "-")


def _load(made: Lab, text: str, *command: str) -> None:
    inside = ["nsenter", f"--net={made.host.path}", *command]
    done = subprocess.run(inside, input=text, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")


def by_tracking(made: Lab) -> None:
    lines = ("add table ip alone", "add chain ip alone f { type filter hook forward priority 0; }")
    _load(made, "\n".join([*lines, "add rule ip alone f ct state established,related accept\n"]), "nft", "-f", "-")


CONTESTANTS: dict[str, Callable[[Lab], None]] = {
    "connection tracking alone": by_tracking,
    "the engine": by_engine,
    "upstream's rules, iptables": by_iptables,
    "upstream's rules, nft": by_nft,
}


def cost(packets: int, rounds: int) -> dict[str, float]:
    """Contestant -> microseconds until a packet that opens a connection has arrived."""
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        nodes = {name: node(stack) for name in CONTESTANTS}
        for name, made in nodes.items():
            CONTESTANTS[name](made)
            if not made.passes("probing", "probed", 80):
                raise SystemExit(f"{name}: the packet that the last rule allows does not pass")
        for _ in range(rounds):
            for name, made in nodes.items():
                found.setdefault(name, []).append(packet_us(made, packets))
    return {name: statistics.median(medians) for name, medians in found.items()}


# -- changes ----------------------------------------------------------------------------------------------------------


class Changes:
    """Eight changes in a circle; each opens or closes a port of its own, which tells that it is in force."""

    def __init__(self, made: Lab) -> None:
        self.node = made
        self.probed = made.workloads["probed"]
        self.decide()
        made.put("GlobalNetworkPolicy", "last", server(30, [{"action": "Allow", "protocol": "UDP"}]))
        made.put("GlobalNetworkPolicy", "labelled", server(20, [udp("Deny", 7400)], "busy == 'yes'"))
        made.put("GlobalNetworkSet", "members", {"nets": []}, are="members")
        self.steps = [
            (lambda: made.put("GlobalNetworkPolicy", "other", self.ten_rules()), 7100, False),
            (lambda: self.decide(udp("Deny", 7200)), 7200, False),
            (lambda: self.members(PROBING), 7300, False),
            (lambda: made.put_endpoint(self.probed, app="server", busy="yes"), 7400, False),
            (lambda: made.remove("GlobalNetworkPolicy", "other"), 7100, True),
            (self.decide, 7200, True),
            (self.members, 7300, True),
            (lambda: made.put_endpoint(self.probed, app="server"), 7400, True),
        ]

    def decide(self, *before: dict[str, Any]) -> None:
        by_set = udp("Deny", 7300, selector="are == 'members'")
        rules = [*before, by_set, udp("Deny", FORBIDDEN), udp("Allow", ALLOWED)]
        self.node.put("GlobalNetworkPolicy", "decides", server(10, rules))

    def members(self, *addresses: str) -> None:
        nets = [f"{address}/32" for address in addresses]
        self.node.put("GlobalNetworkSet", "members", {"nets": nets}, are="members")

    def ten_rules(self) -> dict[str, Any]:
        rules = [udp("Allow", 6000 + number, selector=f"new == 'n{number}'") for number in range(9)]
        return server(5, [udp("Deny", 7100), *rules])

    def take(self, number: int) -> None:
        step, port, wanted = self.steps[number % len(self.steps)]
        step()
        end = time.monotonic() + LIMIT_S
        while self.node.passes("probing", "probed", port) != wanted:
            if time.monotonic() > end:
                raise SystemExit(f"change {number} was never in force: {self.node.standing()}")


def changes(count: int, *, recorded: bool = False) -> tuple[Counts, list[float], Counter[str]]:
    """(packets, milliseconds of each change until in force, what the recorder says if it is ``recorded``)."""
    total, times, said = Counts(), list[float](), Counter[str]()
    with ExitStack() as stack:
        made = node(stack)
        if recorded:
            made.beside = beside(made.root)
        flows = Judged(made, made.root)
        circle = Changes(made)
        while len(times) < count:
            first = len(times)
            made.stop()
            made.start(FELIX_IPV6SUPPORT="false", FELIX_FLOWS="Enabled" if recorded else "Disabled")
            made.until_in_force()
            if recorded:
                flows.until("the recorder knows the rules", lambda found: found.get("judges", False))
            made.until_passes("probing", "probed", FORBIDDEN, wanted=False)
            with traffic(made, "probing", "probed", allowed=ALLOWED, forbidden=FORBIDDEN) as counts:
                while len(times) < min(count, first + BLOCK):
                    begun = time.perf_counter()
                    circle.take(len(times))
                    times.append(1000 * (time.perf_counter() - begun))
            total.sent += counts.sent
            total.allowed_arrived += counts.allowed_arrived
            total.forbidden_arrived += counts.forbidden_arrived
            if recorded:
                said.update(told(flows))
    return total, times, said


def told(flows: Judged) -> Counter[str]:
    """Once nothing more comes."""
    names = "allowed", "denied", "agreed", "disagreed", "unjudged", "unknown"
    found = Counter[str]()

    def is_over() -> bool:
        said, before = flows.says(), found.copy()
        found.clear()
        found.update({name: said.get(name, 0) for name in names}, lost=sum(said.get("lost", {}).values()))
        return bool(said) and found == before

    until(is_over, "everything is recorded, or lost", pause_s=1.0)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--flows", action="store_true")
    chosen = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    if not chosen.flows:
        print_cost(chosen.packets, chosen.rounds)
    packets, times, said = changes(chosen.changes, recorded=chosen.flows)
    lost = packets.sent - packets.allowed_arrived
    print(f"{len(times)} changes under load, {2 * packets.sent} connections")
    print(f"  until in force, ms           {statistics.median(times):6.2f}")
    print(f"  forbidden that passed        {packets.forbidden_arrived:6}")
    print(f"  allowed that were lost       {lost:6}")
    if chosen.flows:
        print("recorded: " + ", ".join(f"{count} {name}" for name, count in said.items()))
    wrong = said["lost"] + said["disagreed"] + said["unknown"]
    return 1 if lost or packets.forbidden_arrived or wrong else 0


def print_cost(packets: int, rounds: int) -> None:
    found = cost(packets, rounds)
    print(f"first packet through {upstream_rules.POLICIES} policies of {upstream_rules.RULES} rules, us")
    alone = found["connection tracking alone"]
    for name, value in found.items():
        print(f"  {name:28} {value:6.2f}, of it policies {value - alone:6.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
