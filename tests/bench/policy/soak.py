#!/usr/bin/env python3
"""Policies that change for a long time, under traffic: every verdict checked, nothing lost, nothing passed, no growth.

    soak.py [--minutes 60] [--seed N]

One node with six workloads and the policy engine in a process of its own. A turn is some fifty random changes
(policies, labels, network sets), now and then a SIGKILL of the engine; after each change the kernel's verdicts for some
pairs and ports are compared with the naive evaluator's. Meanwhile new connections are made without a pause, of which a
policy in the first tier allows half and denies half, whatever the others say. Between two turns the rules are tampered
with, and with all policies gone the rules must be those of the start.

Exits with 1, and the seed, at the first wrong verdict, lost or passed packet, or object that stayed, and at the end if
the engine's resident memory is more than 20 % above that of the first tenth of the turns. Needs root.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.netns.policing.lab import NODE, Lab, lab, traffic
from tests.unit.policy.naive import Naive

NAMES = [f"w{number}" for number in range(6)]
PORTS = [81, 82, 83]
ALLOWED, FORBIDDEN = 7000, 7001
CHANGES = 50
LIMIT_S = 120.0  # a verdict that is wrong stays wrong; a busy machine is slow
SELECTORS = ["all()", "x == '1'", "x == '2'", "y == '1'", "has(y)", "x == '1' && y == '2'", "set == 'yes'"]
UDP = 17
GROWTH = 1.2  # of the engine's resident memory, from the first tenth of the turns to the last turn


class Wrong(Exception):
    """What the soak is there to find."""


@dataclass
class Figures:
    changes: int = 0
    verdicts: int = 0
    restarts: int = 0
    tampered: int = 0
    sent: int = 0
    in_force_ms: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)

    def check_memory(self) -> None:
        """Raises Wrong if the engine has grown."""
        first = statistics.median(self.resident_mb[: max(1, len(self.resident_mb) // 10)])
        if self.resident_mb[-1] > GROWTH * first:
            raise Wrong(f"the engine's memory grew from {first:.1f} to {self.resident_mb[-1]:.1f} MB")


class Soak:
    def __init__(self, node: Lab, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.documents: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.figures = Figures()
        self.policies: set[tuple[str, str, str]] = set()

    # -- records ------------------------------------------------------------------------------------------------------

    def put(self, kind: str, name: str, spec: dict[str, Any], namespace: str = "", **labels: str) -> None:
        self.documents[kind, namespace, name] = {"metadata": {"labels": labels}, "spec": spec}
        self.node.put(kind, name, spec, namespace, **labels)

    def remove(self, key: tuple[str, str, str]) -> None:
        kind, namespace, name = key
        del self.documents[key]
        self.node.remove(kind, name, namespace)

    def prepare(self) -> None:
        rules = [{"action": "Allow"}]
        self.put("Profile", "kns.default", {"ingress": rules, "egress": rules, "labelsToApply": {"n": "default"}})
        self.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        self.put("Tier", "first", {"order": 1, "defaultAction": "Pass"})
        mine = {"protocol": "UDP", "destination": {"ports": [ALLOWED]}}
        never = {"protocol": "UDP", "destination": {"ports": [FORBIDDEN]}}
        spec = {
            "tier": "first",
            "order": 1,
            "selector": "all()",
            "types": ["Ingress", "Egress"],
            "ingress": [{"action": "Allow", **mine}, {"action": "Deny", **never}],
            "egress": [{"action": "Allow", **mine}],
        }
        self.put("GlobalNetworkPolicy", "first.traffic", spec)
        for number, name in enumerate(NAMES):
            self.node.connect(name, f"cali{name}", f"10.65.0.{number + 1}")
            self.relabel(name)

    def relabel(self, name: str) -> None:
        labels = {key: self.random.choice("12") for key in "xy" if self.random.random() < 0.7}
        workload = self.node.workloads[name]
        self.node.put_endpoint(workload, **labels)
        key = "WorkloadEndpoint", "default", f"{NODE}-k8s-{name}-eth0"
        self.documents[key] = {"metadata": {"labels": labels}, "spec": workload.document}

    def change(self) -> None:
        """One to three records."""
        for _ in range(self.random.randint(1, 3)):
            what = self.random.random()
            if what < 0.2:
                self.relabel(self.random.choice(NAMES))
            elif what < 0.3:
                nets = self.random.sample([f"10.65.0.{number}/32" for number in range(1, 7)], 2)
                self.put("GlobalNetworkSet", "set", {"nets": nets}, set=self.random.choice(["yes", "no"]))
            elif what < 0.5 and self.policies:
                key = self.random.choice(sorted(self.policies))
                self.policies.remove(key)
                self.remove(key)
            else:
                self.put_policy()

    def put_policy(self) -> None:
        number, spec = self.random.randint(0, 11), self.policy()
        kind, namespace = self.random.choice([("GlobalNetworkPolicy", ""), ("NetworkPolicy", "default")])
        name = f"default.p{number}"
        self.put(kind, name, spec, namespace)
        self.policies.add((kind, namespace, name))

    def policy(self) -> dict[str, Any]:
        types = self.random.choice([["Ingress"], ["Egress"], ["Ingress", "Egress"]])
        rules = {kind.lower(): [self.rule() for _ in range(self.random.randint(0, 3))] for kind in types}
        order = self.random.choice([1, 2, 2, 3, None])
        spec = {"tier": "default", "selector": self.random.choice(SELECTORS), "types": types, **rules}
        return spec if order is None else {**spec, "order": order}

    def rule(self) -> dict[str, Any]:
        made: dict[str, Any] = {"action": self.random.choice(["Allow", "Allow", "Deny", "Pass"])}
        for end in ("source", "destination"):
            entity: dict[str, Any] = {}
            if self.random.random() < 0.4:
                entity["selector"] = self.random.choice(SELECTORS)
            if self.random.random() < 0.2:
                entity["nets"] = [self.random.choice(["10.65.0.0/30", "10.65.0.4/31", "10.65.0.2/32"])]
            if end == "destination" and self.random.random() < 0.6:
                made["protocol"] = "UDP"
                entity["ports"] = self.random.sample(PORTS, 2)
            if entity:
                made[end] = entity
        return made

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def expected(self) -> dict[tuple[str, str, int], bool]:
        naive, verdicts = Naive(self.documents), {}
        keys = {name: ("WorkloadEndpoint", "default", f"{NODE}-k8s-{name}-eth0") for name in NAMES}
        for source in NAMES:
            for destination in NAMES:
                if source == destination:
                    continue
                for port in PORTS:
                    packet = {
                        "source": ip_address(self.node.workloads[source].address()),
                        "destination": ip_address(self.node.workloads[destination].address()),
                        "protocol": UDP,
                        "sport": 40000,
                        "dport": port,
                        "icmp": None,
                    }
                    ends = ((source, "egress"), (destination, "ingress"))
                    verdicts[source, destination, port] = all(naive.verdict(keys[n], way, packet) for n, way in ends)
        return verdicts

    def check(self) -> None:
        """Until the kernel agrees three times running: a change is several records, each of which may be in force by
        itself for a moment.
        """
        expected, begun, right = self.expected(), time.monotonic(), 0
        tried = self.random.sample(sorted(expected), 30)
        while right < 3:
            wrong = [triple for triple in tried if self.node.passes(*triple) != expected[triple]]
            right = 0 if wrong else right + 1
            if right == 1:
                agreed = time.monotonic()
            if time.monotonic() > begun + LIMIT_S:
                raise Wrong(f"not what the policies say {LIMIT_S:.0f} s after the change: {wrong}")
        self.figures.in_force_ms.append(1000 * (agreed - begun))
        self.figures.verdicts += len(tried)

    # -- turns --------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        with traffic(self.node, NAMES[0], NAMES[1], allowed=ALLOWED, forbidden=FORBIDDEN) as counts:
            for _ in range(CHANGES):
                self.change()
                if self.random.random() < 0.04:
                    self.node.stop(signal.SIGKILL)
                    self.node.start()
                    self.figures.restarts += 1
                self.check()
                self.figures.changes += 1
        self.figures.sent += counts.sent
        if (counts.allowed_arrived, counts.forbidden_arrived) != (counts.sent, 0):
            raise Wrong(f"traffic: {counts}")
        self.tamper()
        self.check()

    def tamper(self) -> None:
        tables = [line for line in self.node.ruleset().splitlines() if line.startswith("table ")]
        table = self.random.choice(tables).removesuffix(" {").removeprefix("table ").split()
        self.node.host.run("nft", *self.random.choice([["flush", "ruleset"], ["delete", "table", *table]]))
        self.figures.tampered += 1

    def objects(self, wanted: list[str] | None = None) -> list[str]:
        """The rules with no policy but the first tier's, a line each: once they are as wanted, or stay as they are."""
        for key in sorted(self.policies):
            self.remove(key)
        self.policies.clear()
        for name in NAMES:
            self.node.put_endpoint(self.node.workloads[name])
            key = "WorkloadEndpoint", "default", f"{NODE}-k8s-{name}-eth0"
            self.documents[key] = {"metadata": {"labels": {}}, "spec": self.node.workloads[name].document}
        if ("GlobalNetworkSet", "", "set") in self.documents:
            self.remove(("GlobalNetworkSet", "", "set"))
        self.check()
        limit, lines = time.monotonic() + LIMIT_S, [""]
        while time.monotonic() < limit:  # what nobody refers to any more goes a moment later, as repairs do
            before, lines = lines, sorted(self.node.ruleset().splitlines())
            if lines == wanted or (wanted is None and before == lines):
                break
            time.sleep(1)
        return lines

    def resident_mb(self) -> float:
        text = Path(f"/proc/{self.node.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def soak(minutes: float, seed: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="cct-soak-") as directory, lab(Path(directory)) as node:
        made = Soak(node, seed)
        made.prepare()
        node.start()
        node.until_in_force()
        baseline, end = made.objects(), time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            made.turn()
            if (lines := made.objects(baseline)) != baseline:
                raise Wrong("\n".join(["other rules than at the start", *difflib.ndiff(baseline, lines)]))
            made.figures.resident_mb.append(made.resident_mb())
            print(f"{made.figures.changes} changes, {made.figures.resident_mb[-1]:.1f} MB", file=sys.stderr, flush=True)
        made.figures.check_memory()
        return made.figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    chosen = parser.parse_args()
    try:
        found = soak(chosen.minutes, chosen.seed)
    except Wrong as e:
        print(f"seed {chosen.seed}: {e}", file=sys.stderr)
        return 1
    print(json.dumps({
        "seed": chosen.seed,
        "changes": found.changes,
        "verdicts": found.verdicts,
        "restarts": found.restarts,
        "tampered": found.tampered,
        "connections": 2 * found.sent,
        "median ms until all in force": round(statistics.median(found.in_force_ms), 1),
        "resident MB": [round(found.resident_mb[0], 1), round(found.resident_mb[-1], 1)],
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
