#!/usr/bin/env python3
"""Policy: how long a policy of one namespace takes while others write policies as large as they may be.

    tenants.py [--tenants 50] [--rules 16000] [--repeat 20]

Prints the time from put to in force (a UDP probe sees it), alone and while the tenants' policies are being taken in:
median and worst, in ms; and how long all of them took. Needs root.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.netns.policing.lab import Lab
from tests.netns.policing.tenants import endpoint, large_policy, two_pods, unrelated


def changed_ms(made: Lab, *, deny: bool) -> float:
    begun = time.perf_counter()
    unrelated(made, deny=deny)
    while made.passes("a", "b", 80) == deny:
        pass
    return 1000 * (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tenants", 50), ("rules", 16000), ("repeat", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/run") as root, two_pods(Path(root)) as made:
        made.limit_s = 1200
        made.write([endpoint(number) for number in range(asked.tenants)])
        made.start(FELIX_IPV6SUPPORT="false")
        made.until_in_force(endpoints=2 + asked.tenants)
        alone = [changed_ms(made, deny=number % 2 == 0) for number in range(asked.repeat)]
        print(f"alone: {statistics.median(alone):.1f} ms, worst {max(alone):.1f}", flush=True)
        begun = time.perf_counter()
        for number in range(asked.tenants):
            made.write([large_policy(number, asked.rules)])
        print(f"written: {time.perf_counter() - begun:.1f} s", flush=True)
        beside = [changed_ms(made, deny=number % 2 == 0) for number in range(asked.repeat)]
        counts = made.standing()["counts"]
        print(f"beside the others: {statistics.median(beside):.1f} ms, worst {max(beside):.1f}; {counts}", flush=True)
        while made.standing()["counts"]["policies"] < 1 + asked.tenants:
            time.sleep(0.1)
        print(f"all in force: {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
