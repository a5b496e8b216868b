#!/usr/bin/env python3
"""Policy: how long a start takes on a kernel that holds far more of our rules than are wanted.

    start_on_rules.py [--rules 1000000]

Prints what filling took, and how long until the wanted rules are in force: the old table is too large to be read back,
and replaced in one transaction. Needs root.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import Log
from cni_calico.netfilter.rules import DROP, NftRule
from cni_calico.netfilter.tables import AddChain, AddRules, AddTable
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from tests.netns.namespaces import host_namespace

AT_ONCE = 50000


def fill(kernel: NfTables, rules: int) -> None:
    table, some = FILTER[4], tuple(NftRule((), (DROP,), f"rule {i}") for i in range(AT_ONCE))
    kernel.apply([AddTable(table)], Deadline.after(10))
    for number in range(rules // AT_ONCE):
        chain = f"pi-old-{number}"
        kernel.apply([AddChain(table, chain), AddRules(table, chain, some)], Deadline.after(60))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rules", type=int, default=1000000)
    count = arguments.parse_args().rules
    with host_namespace() as host:
        netns.enter(os.open(host.path, os.O_RDONLY | os.O_CLOEXEC))
        with NfTables() as kernel:
            begun = time.perf_counter()
            fill(kernel, count)
            print(f"{count} rules written: {time.perf_counter() - begun:.1f} s", flush=True)
            begun = time.perf_counter()
            enforcer = Enforcer(kernel, Goal(FilterSettings()), Log("warning"))
            enforcer.read(Deadline.after(60))
            print(f"looked at: {time.perf_counter() - begun:.1f} s", flush=True)
            enforcer.bring_about(Deadline.after(60))
            print(f"in force: {time.perf_counter() - begun:.1f} s", flush=True)
            begun = time.perf_counter()
            enforcer.doubt()
            assert enforcer.bring_about(Deadline.after(60)) == 0
            print(f"compared again, nothing to do: {1000 * (time.perf_counter() - begun):.0f} ms")


if __name__ == "__main__":
    main()
