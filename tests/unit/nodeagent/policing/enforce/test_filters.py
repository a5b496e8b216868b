"""Which packet filter enforces policies, by what the kernel and the host have and what the mode says."""

from __future__ import annotations

from errno import EINVAL, ENOBUFS, EOPNOTSUPP
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.legacy import programs
from cni_calico.kernel.filter.nf_tables import filter as nf_tables_filter
from cni_calico.netfilter.tables import AddTable
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.enforce import filters
from cni_calico.nodeagent.policing.enforce.filters import IPTABLES, NFTABLES, choose, look
from tests.fakes.nftables import FakePacketFilter


class Kernel(FakePacketFilter):
    """As a context, as NfTables is."""

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def nf_tables(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Legacy iptables can be used, too."""
    made = Kernel()
    for module in (filters, nf_tables_filter):
        monkeypatch.setattr(module, "NfTables", lambda: made)
    monkeypatch.setattr(programs, "missing_programs", lambda: "")
    monkeypatch.setattr(programs, "probe", lambda deadline, lock_s: deadline.require("look"))
    return made


@pytest.mark.parametrize(
    ("mode", "no_nftables", "no_iptables", "chosen", "said"),
    [
        ("Auto", "", "", NFTABLES, ""),
        ("Auto", "", "no ipset", NFTABLES, ""),
        ("Auto", "no nf_tables", "", IPTABLES, "no nf_tables: policies are enforced with legacy iptables"),
        ("Disabled", "", "", IPTABLES, "NFTablesMode is Disabled: policies are enforced with legacy iptables"),
        ("Disabled", "no nf_tables", "", IPTABLES, "NFTablesMode is Disabled"),
        ("Disabled", "", "no ipset", NFTABLES, "nftables all the same, because no ipset"),
        ("Enabled", "no nf_tables", "", IPTABLES, "no nf_tables"),
    ],
)
def test_what_is_chosen(mode: str, no_nftables: str, no_iptables: str, chosen: str, said: str) -> None:
    plane = choose(mode, no_nftables, no_iptables)
    assert plane.name == chosen
    assert said in plane.warning and bool(said) is bool(plane.warning)


@pytest.mark.parametrize("mode", ["Auto", "Enabled", "Disabled"])
def test_a_host_with_neither_is_told_what_is_missing(mode: str) -> None:
    with pytest.raises(KernelError, match="no packet filter for policies: no nf_tables; and no ipset"):
        choose(mode, "no nf_tables", "no ipset")


def test_a_kernel_with_nf_tables(nf_tables: Kernel) -> None:
    assert look(FelixSettings()).name == NFTABLES
    assert nf_tables.tables == {} and nf_tables.transactions == []  # looking leaves nothing behind


@pytest.mark.parametrize("errno", [EINVAL, EOPNOTSUPP])
def test_a_kernel_without_tables_for_ipv4(nf_tables: Kernel, errno: int) -> None:
    """Also one whose nf_tables answers questions: each family's tables are an option of their own."""
    nf_tables.refuse = lambda operation: errno if isinstance(operation, AddTable) else 0
    assert nf_tables.generation(Deadline.after(1)) > 0
    plane = look(FelixSettings())
    assert plane.name == IPTABLES and plane.warning.startswith("this kernel has no nf_tables")


def test_a_failure_that_passes_does_not_change_the_packet_filter(nf_tables: Kernel) -> None:
    nf_tables.refuse = lambda operation: ENOBUFS
    with pytest.raises(KernelError) as e:
        look(FelixSettings())
    assert e.value.errno == ENOBUFS


@pytest.mark.parametrize(
    ("patched", "named"),
    [
        ({"missing_programs": lambda: "ipset"}, "install ipset"),
        ({"probe": lambda deadline, lock_s: _refuse("no ip_tables")}, "no ip_tables"),
    ],
)
def test_why_iptables_cannot_be_used(
    nf_tables: Kernel, monkeypatch: pytest.MonkeyPatch, patched: dict[str, Any], named: str
) -> None:
    for name, function in patched.items():
        monkeypatch.setattr(programs, name, function)
    plane = look(FelixSettings(nftables_mode="Disabled"))
    assert plane.name == NFTABLES and named in plane.warning


def _refuse(why: str) -> None:
    raise KernelError(why)
