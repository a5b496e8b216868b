"""The interfaces that wait: what the two packet filters are given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.filter.boot_table import (
    CHAIN,
    WAITING,
    plan_waiting,
    plan_waiting_change,
    render_removal,
    render_script,
    render_waiting,
)
from cni_calico.netfilter.rules import DROP
from cni_calico.netfilter.tables import NftTable, TableId, interface_key, mirror

some = st.frozensets(st.sampled_from(["cali1", "cali2", "cali3", "cali4"]))


def closed(tables: dict[TableId, NftTable]) -> set[bytes]:
    table = tables.get(WAITING)
    verdicts = table.verdicts["interfaces"] if table is not None else {}
    assert set(verdicts.values()) <= {DROP}
    return set(verdicts)


@given(some, some)
def test_a_change_ends_where_writing_everything_does(before: frozenset[str], wanted: frozenset[str]) -> None:
    tables: dict[TableId, NftTable] = {}
    mirror(tables, plan_waiting(before))
    assert closed(tables) == set(map(interface_key, before))
    if before:
        mirror(tables, plan_waiting_change(before, wanted))
        assert closed(tables) == set(map(interface_key, wanted))


def test_legacy_iptables_closes_them_beside_the_boot_table() -> None:
    saved = ":calico-waiting - [0:0]\n-A FORWARD -j calico-waiting\n-A FORWARD -j calico-boot\n"
    assert render_waiting(["cali2", "cali1"], saved).splitlines() == [
        "*filter",
        ":calico-waiting - [0:0]",
        *(f"-A calico-waiting {way} {name} -j DROP" for name in ("cali1", "cali2") for way in ("-i", "-o")),
        "-D FORWARD -j calico-waiting",
        "-I FORWARD -j calico-waiting",
        "-I INPUT -j calico-waiting",
        "COMMIT",
    ]
    assert "calico-boot" not in render_removal(saved, "calico-waiting")
    assert render_removal(saved) == "" and f"-D FORWARD -j {CHAIN}" in render_script(["cali"], saved)
