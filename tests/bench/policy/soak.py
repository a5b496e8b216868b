#!/usr/bin/env python3
"""Policies that change for a long time, under traffic: every verdict checked, nothing lost, nothing passed, no growth.

    soak.py [--minutes 120] [--seed N] [--settle 4000]

One node with six workloads, two interfaces to a host outside each, a NodePort and a service, and the policy engine in a
process of its own. A change is one to three random records: policies of workloads and hosts (ordinary, applyOnForward,
preDNAT, doNotTrack), host endpoints (by name, by expectedIPs, `*`, an automatic one), labels, network sets, pods that
come and go (with their interface, or only their record). During the first third of the time the engine is killed
(SIGKILL) now and then; the one that lives then has to live to the end. It begins with --settle changes as fast as they
go, so that its caches are full before its memory is compared.

Every change is tried with packets between workloads, to and from the host, through it, to the NodePort and to the
service, IPv4 and IPv6, each compared with the naive evaluator. The last records of a change are beacons: one of each
kind of record, which turns the verdict about a port of its own. The window of a change ends when the kernel has agreed
about them and a random choice three times running; after that every packet of another choice has to be right at once.
Meanwhile new connections are made without a pause, from one workload to another and from outside to the host, of which
a policy in the first tier allows half and denies half, whatever the others say. After every fifty changes the rules are
tampered with. How many forbidden connections pass until the repair is told, and how many allowed ones are lost: the
kernel can drop a packet that is among the rules while another program deletes them, because it no longer finds the
map's entry. Then all records are removed, and the rules must be those of the start.

Exits with 1, and the seed, at the first wrong verdict, lost or passed packet, or object that stayed; and at the end if
the engine's resident memory is more than 20 % above that of the first tenth of its life, or its open files are FILES
more.
The last line that it prints is its result; in it the slope of that memory over the second half of the engine's life, in
MB an hour, and by how much it may be wrong. Needs root.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.policy.random_records import NOBODYS, WITH_ALL, RandomRecords
from tests.bench.policy.soak_node import (
    FIRST_HOST,
    INTERFACES,
    NAMES,
    OWN,
    TRAFFIC,
    Presence,
    Probe,
    SoakNode,
)
from tests.bench.slope import slope_with_noise
from tests.netns.policing.lab import NODE, Counts, lab, traffic

ALLOWED, FORBIDDEN = 7000, 7001
BEACONS = {  # the kinds of records, and the port that one of each decides about
    "GlobalNetworkPolicy": 7101,
    "NetworkPolicy": 7102,
    "GlobalNetworkSet": 7103,
    "WorkloadEndpoint": 7104,
    "HostEndpoint": 7105,
}
CHANGES = 50
LIMIT_S = 180.0  # a verdict that is wrong stays wrong; a busy machine is slow
TRIED, TRIED_AGAIN = 30, 100  # packets of one look in the window of a change, and after it
KILLING = 1 / 3  # of the time
PAUSE_S = 0.01  # after each change that is made in a hurry
FILES = 24  # the most that its connections to the datastore can become more: one and its log for each listing
GROWTH = 1.2  # of the engine's resident memory, from the first tenth of its last life to the end
Key = tuple[str, str, str]


def never_to(kind: str) -> dict[str, Any]:
    return {"action": "Deny", "protocol": "UDP", "destination": {"ports": [BEACONS[kind]]}}


def beacon(selector: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tier": "first", "order": 0, "selector": selector, "types": ["Ingress"], "ingress": rules}


class Wrong(Exception):
    """What the soak is there to find."""


@dataclass
class Figures:
    changes: int = 0
    verdicts: int = 0
    restarts: int = 0
    tampered: int = 0
    passed_while_tampered: int = 0
    lost_while_tampered: int = 0
    sent: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    in_force_ms: list[float] = field(default_factory=list)
    resident_mb: list[float] = field(default_factory=list)  # of the engine that lives to the end
    looked_h: list[float] = field(default_factory=list)  # when each of these was read
    files: list[int] = field(default_factory=list)

    def slope(self) -> str:
        """Of the memory, in MB an hour; what an engine fills first, as its caches, is not in it."""
        half = len(self.looked_h) // 2
        if len(self.looked_h) - half < 3:
            return "too few samples"
        slope, noise = slope_with_noise(self.looked_h[half:], self.resident_mb[half:])
        return f"{slope:+.2f} +- {noise:.2f}"

    def check_memory(self) -> None:
        """Raises Wrong if the engine has grown."""
        first = statistics.median(self.resident_mb[: max(1, len(self.resident_mb) // 10)])
        if self.resident_mb[-1] > GROWTH * first:
            raise Wrong(f"the engine's memory grew from {first:.1f} to {self.resident_mb[-1]:.1f} MB")
        if self.files and self.files[-1] > self.files[0] + FILES:
            raise Wrong(f"the engine's open files became more: {self.files[0]}, {self.files[-1]}")


class Soak:
    def __init__(self, node: SoakNode, seed: int) -> None:
        self.node = node
        self.made = RandomRecords(seed, OWN)
        self.random = self.made.random
        self.figures = Figures()
        self.policies: set[Key] = set()
        self.hosts: set[Key] = set()
        self.last_tampering = ""
        self._on = False
        self._host_labels: dict[str, str] = {}

    # -- records ------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        put = self.node.put
        rules = [{"action": "Allow"}]
        put("Profile", "kns.default", {"ingress": rules, "egress": rules, "labelsToApply": {"n": "default"}})
        put("Profile", "open", {"ingress": rules, "egress": rules})
        self.node.documents["Profile", "", WITH_ALL] = {"metadata": {}, "spec": {"ingress": rules, "egress": rules}}
        put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        put("Tier", "first", {"order": 1, "defaultAction": "Pass"})
        mine = {"protocol": "UDP", "destination": {"ports": [ALLOWED, *BEACONS.values()]}}
        never = {"protocol": "UDP", "destination": {"ports": [FORBIDDEN]}}
        spec = {
            "tier": "first",
            "order": 1,
            "selector": "all()",
            "applyOnForward": True,
            "types": ["Ingress", "Egress"],
            "ingress": [{"action": "Allow", **mine}, {"action": "Deny", **never}],
            "egress": [{"action": "Allow", **mine}],
        }
        put("GlobalNetworkPolicy", "first.traffic", spec)
        self.node.connect_all()
        by_set = {"source": {"selector": "beacon == 'set'"}}
        by_label = [never_to("WorkloadEndpoint"), never_to("HostEndpoint")]
        put("GlobalNetworkPolicy", "first.by-set", beacon("all()", [{**never_to("GlobalNetworkSet"), **by_set}]))
        put("GlobalNetworkPolicy", "first.by-label", beacon("beacon == 'on'", by_label))
        self.turn_beacons()

    def turn_beacons(self) -> None:
        """What was written before, of the same kind, is in force when these are."""
        self._on = not self._on
        rules = {kind: [never_to(kind)] if self._on else [] for kind in ("GlobalNetworkPolicy", "NetworkPolicy")}
        put = self.node.put
        put("GlobalNetworkPolicy", "first.beacon", beacon("all()", rules["GlobalNetworkPolicy"]))
        put("NetworkPolicy", "first.beacon", beacon("all()", rules["NetworkPolicy"]), "default")
        sender = self.node.lab.workloads[TRAFFIC[0]].address()
        put("GlobalNetworkSet", "beacon", {"nets": [f"{sender if self._on else NOBODYS}/32"]}, "", beacon="set")
        self.node.put_workload(TRAFFIC[1], {"beacon": "on"} if self._on else {})
        self.relabel_host(self._host_labels)

    def relabel_host(self, labels: dict[str, str]) -> None:
        """The endpoint of the interface that the traffic uses is always there, and has the smallest name."""
        self._host_labels = labels
        spec = {"node": NODE, "interfaceName": INTERFACES[0], "expectedIPs": OWN[INTERFACES[0]]}
        given = {**labels, "beacon": "on"} if self._on else labels
        self.node.put("HostEndpoint", FIRST_HOST, spec, "", **given)

    def change(self) -> None:
        """One to three records."""
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.choices(
                ["labels", "set", "pod", "host labels", "host", "host gone", "policy gone", "policy"],
                [12, 6, 10, 6, 14, 6, 16, 30],
            )[0]
            self.figures.kinds[kind] += 1
            if kind == "labels":
                self.node.put_workload(self.random.choice(NAMES), self.made.labels())
            elif kind == "set":
                spec, labels = self.made.network_set()
                self.node.put("GlobalNetworkSet", "set", spec, "", **labels)
            elif kind == "pod":
                self.node.move(self.random.choice(NAMES[2:]), self.random.choice(list(Presence)))
            elif kind == "host labels":
                self.relabel_host({**self.made.labels(), "host": self.random.choice(["yes", "no"])})
            elif kind == "host":
                name, spec, labels = self.made.host()
                self.node.put("HostEndpoint", name, spec, "", **labels)
                self.hosts.add(("HostEndpoint", "", name))
            elif kind == "policy":
                made, namespace, name, spec = self.made.policy()
                self.node.put(made, name, spec, namespace)
                self.policies.add((made, namespace, name))
            else:
                self.remove_one(self.hosts if kind == "host gone" else self.policies)

    def remove_one(self, among: set[Key]) -> None:
        if among:
            key = self.random.choice(sorted(among))
            among.remove(key)
            self.node.remove(key)

    def hurry(self, changes: int, pause_s: float) -> None:
        """As many changes as fast as they go, without a look at packets."""
        for _ in range(changes):
            self.change()
            self.turn_beacons()
            time.sleep(pause_s)

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.turn_beacons()
        changed, right, agreed = time.monotonic(), 0, 0.0
        probes = self.node.probes()
        tried = self.node.beacon_probes(BEACONS) + self.random.sample(probes, min(TRIED, len(probes)))
        while right < 3:
            wrong = self.node.wrong(tried)
            self.figures.verdicts += len(tried)
            right = 0 if wrong else right + 1
            if right == 1:
                agreed = time.monotonic()
            if time.monotonic() > changed + LIMIT_S:
                self.fail(f"not what the policies say {LIMIT_S:.0f} s after the change", wrong)
        self.figures.in_force_ms.append(1000 * (agreed - changed))
        again = self.random.sample(probes, min(TRIED_AGAIN, len(probes)))
        self.figures.verdicts += len(again)
        if wrong := self.node.wrong(again):
            self.fail("wrong after the window of the change", wrong)

    def fail(self, what: str, wrong: list[tuple[Probe, str]]) -> None:
        once_more = self.node.wrong([probe for probe, _ in wrong])
        records = [(key, document["spec"]) for key, document in sorted(self.node.documents.items())]
        raise Wrong(f"{what}: {wrong}; once more: {once_more}\n{json.dumps(records)}\n{self.node.lab.ruleset()}")

    # -- turns --------------------------------------------------------------------------------------------------------

    def turn(self, *, killing: bool) -> None:
        with self.traffic() as counts:
            for _ in range(CHANGES):
                self.change()
                if killing and self.random.random() < 0.04:
                    self.node.lab.stop(signal.SIGKILL)
                    self.node.start()
                    self.figures.restarts += 1
                self.check()
                self.figures.changes += 1
        for one in counts.values():
            self.figures.sent += one.sent
            if (one.allowed_arrived, one.forbidden_arrived) != (one.sent, 0):
                raise Wrong(f"traffic: {counts}")
        with self.traffic() as counts:
            self.tamper()
            self.check()
        for one in counts.values():
            self.figures.sent += one.sent
            self.figures.passed_while_tampered += one.forbidden_arrived
            self.figures.lost_while_tampered += one.sent - one.allowed_arrived

    def traffic(self) -> TrafficOfBoth:
        return TrafficOfBoth(self.node)

    def tamper(self) -> None:
        tables = [line for line in self.node.lab.ruleset().splitlines() if line.startswith("table ")]
        table = self.random.choice(tables).removesuffix(" {").removeprefix("table ").split()
        command = self.random.choice([["flush", "ruleset"], ["delete", "table", *table]])
        self.node.lab.host.run("nft", *command)
        self.node.translate()  # which others would repair
        self.figures.tampered += 1
        self.last_tampering = " ".join(command)

    def clear(self) -> None:
        """Remove all but what stands since the start; the next beacons are turned off."""
        for key in sorted(self.policies | self.hosts):
            self.node.remove(key)
        self.policies.clear()
        self.hosts.clear()
        for name in NAMES:
            self.node.move(name, Presence.THERE)
            self.node.put_workload(name, {})
        self._on, self._host_labels = True, {}  # so that the next check turns them off
        if ("GlobalNetworkSet", "", "set") in self.node.documents:
            self.node.remove(("GlobalNetworkSet", "", "set"))

    def objects(self, wanted: list[str] | None = None) -> list[str]:
        """The rules with no policy but the first tier's, a line each: once they are as wanted, or stay as they are."""
        self.clear()
        self.check()
        limit, lines = time.monotonic() + LIMIT_S, [""]
        while time.monotonic() < limit:  # what nobody refers to any more goes a moment later, as repairs do
            before, lines = lines, sorted(self.node.lab.ruleset().splitlines())
            if lines == wanted or (wanted is None and before == lines):
                break
            time.sleep(1)
        return lines

    def look(self) -> None:
        """Of the engine that is to live to the end."""
        process = Path(f"/proc/{self.node.lab.pid}")
        resident = (process / "status").read_text().partition("VmRSS:")[2].split()[0]
        self.figures.resident_mb.append(int(resident) / 1024)
        self.figures.looked_h.append(time.monotonic() / 3600)
        self.figures.files.append(len(os.listdir(process / "fd")))


class TrafficOfBoth:
    """From one workload to another, and from outside to the host."""

    def __init__(self, node: SoakNode) -> None:
        self._node = node
        self._stack = ExitStack()

    def __enter__(self) -> dict[str, Counts]:
        made = {}
        for source, destination in (("t0", "t1"), ("o0", "host")):
            running = traffic(self._node.lab, source, destination, allowed=ALLOWED, forbidden=FORBIDDEN)
            made[f"{source} to {destination}"] = self._stack.enter_context(running)
        return made

    def __exit__(self, *_: Any) -> None:
        self._stack.close()


def soak(minutes: float, seed: int, settle: int) -> Figures:
    with (
        tempfile.TemporaryDirectory(prefix="cct-soak-") as directory,
        lab(Path(directory)) as made,
        ExitStack() as stack,
    ):
        node = SoakNode(made, Path(directory), stack, limit_s=int(60 * minutes) + 3600)
        running = Soak(node, seed)
        running.prepare()
        node.start()
        made.until_in_force()
        baseline, begun, settled = running.objects(), time.monotonic(), False
        while time.monotonic() < begun + 60 * minutes:
            killing = time.monotonic() < begun + KILLING * 60 * minutes
            if not killing and not settled:
                running.hurry(settle, PAUSE_S)
                settled = True
            running.turn(killing=killing)
            if (lines := running.objects(baseline)) != baseline:
                raise Wrong("\n".join(["other rules than at the start", *difflib.ndiff(baseline, lines)]))
            if not killing or minutes < CHANGES / 10:
                running.look()
            found = running.figures
            said = f"{found.changes} changes, {found.verdicts} verdicts, {found.restarts} restarts, {found.sent} sent"
            grown = f"{found.resident_mb[-1]:.1f} MB, {found.files[-1]} files" if found.files else "being killed"
            tampered = (
                f"{running.last_tampering}: {found.passed_while_tampered} passed, {found.lost_while_tampered} lost"
            )
            minute = (time.monotonic() - begun) / 60
            print(f"{minute:.1f} min: {said}; {grown}; {tampered}", file=sys.stderr, flush=True)
        if found.files:
            found.check_memory()
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--settle", type=int, default=4000, metavar="CHANGES", help="before memory is compared (4000)")
    chosen = parser.parse_args()
    try:
        found = soak(chosen.minutes, chosen.seed, chosen.settle)
    except Wrong as e:
        print(f"seed {chosen.seed}: {e}", file=sys.stderr)
        return 1
    print(json.dumps({
        "seed": chosen.seed,
        "minutes": chosen.minutes,
        "changes": found.changes,
        "records": dict(found.kinds),
        "verdicts": found.verdicts,
        "restarts": found.restarts,
        "tampered": found.tampered,
        "forbidden passed while tampered": found.passed_while_tampered,
        "allowed lost while tampered": found.lost_while_tampered,
        "connections": 2 * found.sent,
        "median ms until all in force": round(statistics.median(found.in_force_ms), 1),
        "MB an hour, second half": found.slope(),
        "resident MB": [round(value, 1) for value in (found.resident_mb or [0])[:: max(1, len(found.resident_mb) - 1)]],
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
