"""The engine's own transactions wake it no second time; another program's changes of our tables do."""

from __future__ import annotations

import subprocess

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.kernel.netlink import filter_events
from cni_calico.kernel.netlink.filter_events import FilterMonitor
from cni_calico.netfilter.rules import DROP, NftRule
from cni_calico.netfilter.tables import AddChain, AddRules, AddTable, TableId
from tests.netns.namespaces import namespace

pytestmark = pytest.mark.netns

OURS = TableId("ip", "ours")


def test_own_transactions_wake_nobody() -> None:
    with namespace("own-changes") as node:
        assert node.call(_changes) == [
            "our change: False set()",
            "a change of another table: False set()",
            "a change of ours by nft: True {'nft'}",
            "our change, and nft's before it: True {'nft'}",
            "a wake-up after our change: True set()",
        ]


def _changes() -> list[str]:
    """What the kernel reports of a transaction waits in the socket when the transaction is over."""
    found = []
    with NfTables() as kernel, FilterMonitor(OURS.name, kernel.port) as monitor:
        kernel.apply([AddTable(OURS)], Deadline.after(10))
        monitor.watch_rules()
        monitor.take()

        def own(name: str) -> None:
            kernel.apply([AddChain(OURS, name)], Deadline.after(10))

        def others(table: str, chain: str) -> None:
            subprocess.run(["nft", f"add table ip {table}; add chain ip {table} {chain}"], check=True)

        def note(what: str) -> None:
            happened = monitor.wait(0.0)
            found.append(f"{what}: {happened} {monitor.take().touched_by or set()}")

        own("a")
        note("our change")
        others("theirs", "a")
        note("a change of another table")
        others("ours", "b")
        note("a change of ours by nft")
        others("ours", "c")
        own("d")
        note("our change, and nft's before it")
        own("e")
        monitor.wake()
        note("a wake-up after our change")
    return found


def test_a_large_own_transaction_costs_no_report_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported while it is committed, when nobody can read, and is more than the socket takes."""
    monkeypatch.setattr(filter_events, "_BUFFER_BYTES", 64 << 10)
    with namespace("own-changes") as node:
        assert node.call(_large_changes) == ["our change: False False", "the same by nft: True True"]


def _large_changes() -> list[str]:
    found, rules = [], (NftRule((), (DROP,)),) * 5000
    with NfTables() as kernel, FilterMonitor(OURS.name, kernel.port) as monitor:
        monitor.watch_rules()
        monitor.take()

        def note(what: str) -> None:
            happened = monitor.wait(0.0)
            found.append(f"{what}: {happened} {monitor.take().lost}")

        kernel.apply([AddTable(OURS), AddChain(OURS, "a"), AddRules(OURS, "a", rules)], Deadline.after(10))
        note("our change")
        script = "add table ip ours\nadd chain ip ours b\n" + "add rule ip ours b drop\n" * 5000
        subprocess.run(["nft", "-f", "-"], input=script, text=True, check=True)
        note("the same by nft")
    return found
