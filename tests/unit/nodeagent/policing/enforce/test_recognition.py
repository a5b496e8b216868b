"""What a later reading recognises is no change of the kernel's; what is really different is one."""

from __future__ import annotations

from cni_calico.netfilter.rules import DROP, Unrecognised
from cni_calico.netfilter.tables import NftChain, NftTable, TableId
from cni_calico.nodeagent.policing.enforce.recognition import as_large, as_recognised
from tests.unit.netfilter.rules import rule

OURS = TableId("ip", "ours")
STRANGE = NftChain("a", (rule(Unrecognised("x"), DROP),))
KNOWN, OTHER = NftChain("a", (rule(DROP),)), NftChain("b", (rule(DROP),))


def tables(*chains: NftChain) -> dict[TableId, NftTable]:
    return {OURS: NftTable("ip", "ours", {chain.name: chain for chain in chains})}


def test_a_chain_that_is_recognised_later_has_not_changed() -> None:
    assert as_recognised(tables(STRANGE, OTHER), tables(KNOWN, OTHER)) == tables(KNOWN, OTHER)


def test_what_has_changed_stays_different() -> None:
    for before, now in (
        (tables(KNOWN), tables(STRANGE)),
        (tables(STRANGE), tables()),
        (tables(STRANGE), {}),
        (tables(OTHER), tables(KNOWN, OTHER)),
    ):
        assert as_recognised(before, now) == before != now


def test_as_many_rules_more() -> None:
    (table,) = tables(KNOWN).values()
    larger = as_large(table, 7)
    assert larger is not None and sum(len(chain.rules) for chain in larger.chains.values()) == 8
    assert as_large(table, 0) is table and as_large(None, 7) is None
