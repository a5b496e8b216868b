#!/usr/bin/env python3
"""Policy: how long a policy of one namespace takes while another namespace writes as much as it may.

    tenants.py [--case tenants|budget|selectors|terms|members|policies|labels]
               [--tenants 50] [--rules 16000] [--repeat 40] [--memory-mib MIB] [--rule-total RULES]

tenants: policies of one network for each rule; budget: policies that need as many rules of the packet filter as a
policy may, 16 for each of theirs; selectors: whose rules have a selector each; terms: selectors of 10,000 terms;
members: a network set of 100,000 networks; policies: 10,000 policies of one namespace; labels: those of a workload
change 100 times a second. Prints the time from put to in force (a UDP probe sees it), --repeat times alone and beside
the others until everything is in force, at least ten times --repeat (members arrive long before): median, 90th
percentile and worst, in ms, and how many took more than 200; and how long everything took. --memory-mib is the agent's
FELIX_POLICYMEMORYLIMITMIB: what does not fit waits; --rule-total is FELIX_POLICYRULETOTAL. Needs root.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.datastore.interface import Write
from tests.netns.policing import tenants
from tests.netns.policing.lab import Lab
from tests.netns.policing.tenants import endpoint, large_policy, two_pods, unrelated

CASES = ("tenants", "budget", "selectors", "terms", "members", "policies", "labels")
LIMIT_S = 240.0


def changed_ms(made: Lab, *, deny: bool) -> float:
    begun = time.perf_counter()
    unrelated(made, deny=deny)
    while made.passes("a", "b", 80) == deny:
        pass
    return 1000 * (time.perf_counter() - begun)


def show(what: str, times: list[float]) -> None:
    found = sorted(times)
    print(
        f"{what}: {statistics.median(found):.1f} ms, p90 {found[len(found) * 9 // 10]:.1f}, worst {found[-1]:.1f}, "
        f"of {len(found)}, {sum(one > 200 for one in found)} above 200",
        flush=True,
    )


def writes(asked: argparse.Namespace) -> Iterator[list[Write]]:
    """What the others write, in this order."""
    match asked.case:
        case "tenants":
            yield from ([large_policy(number, asked.rules)] for number in range(asked.tenants))
        case "budget":
            rules = min(asked.rules, tenants.LARGEST)
            yield from ([tenants.of_alternatives(number, rules)] for number in range(asked.tenants))
        case "selectors":
            yield from ([tenants.selector_policy(number, asked.rules)] for number in range(asked.tenants))
        case "terms":
            yield from ([tenants.terms_policy(number % asked.tenants, 10_000, number)] for number in range(20))
        case "members":
            yield [tenants.set_policy(0)]
            yield from ([tenants.network_set(0, 100_000, version)] for version in range(6))
        case "policies":
            yield from ([tenants.small_policy(0, number)] for number in range(10_000))  # a transaction for each
        case "labels":
            for version in range(2000):
                time.sleep(0.01)
                yield [endpoint(0, version)]


def done_of(asked: argparse.Namespace) -> Callable[[Lab], bool]:
    count = {
        "tenants": asked.tenants,
        "budget": asked.tenants,
        "selectors": asked.tenants,
        "policies": 10_000,
        "terms": min(20, asked.tenants),
    }.get(asked.case, 0)
    return lambda made: made.standing()["counts"]["policies"] > count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tenants", 50), ("rules", 16000), ("repeat", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--memory-mib", type=int)
    parser.add_argument("--rule-total", type=int)
    parser.add_argument("--case", choices=CASES, default="tenants")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/run") as root, two_pods(Path(root)) as made:
        made.limit_s = 1200
        made.write([endpoint(number) for number in range(asked.tenants)])
        asked_limits = {"FELIX_POLICYMEMORYLIMITMIB": asked.memory_mib, "FELIX_POLICYRULETOTAL": asked.rule_total}
        limit = {name: str(value) for name, value in asked_limits.items() if value is not None}
        made.start(FELIX_IPV6SUPPORT="false", **limit)
        made.until_in_force(endpoints=2 + asked.tenants)
        show("alone", [changed_ms(made, deny=number % 2 == 0) for number in range(asked.repeat)])
        begun = time.perf_counter()

        def write() -> None:
            for some in writes(asked):
                made.write(some)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        if asked.case in ("tenants", "budget", "selectors"):
            writer.join()  # what the datastore takes for it is not measured
        beside: list[float] = []
        done = done_of(asked)
        few = 10 * asked.repeat
        while time.perf_counter() - begun < LIMIT_S and (writer.is_alive() or not done(made) or len(beside) < few):
            beside.append(changed_ms(made, deny=len(beside) % 2 == 0))
        took = time.perf_counter() - begun
        show(f"beside {asked.case}", beside)
        print(f"{'all in force' if done(made) else 'not all in force'}: {took:.1f} s; {made.standing()['counts']}")


if __name__ == "__main__":
    main()
