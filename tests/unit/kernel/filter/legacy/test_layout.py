"""Where chains are: after any sequence of tables as if the last one had been the first, and as reaching says."""

from __future__ import annotations

import random

import pytest

from cni_calico.kernel.filter.legacy.layout import Compiler
from cni_calico.kernel.filter.legacy.matches import Marks
from cni_calico.kernel.filter.legacy.names import chain_name
from cni_calico.kernel.filter.legacy.placement import FILTER, RAW, Layout, NotExpressed
from cni_calico.netfilter.rules import ACCEPT, DROP, Dispatch, NftRule, NoTrack, jump
from cni_calico.netfilter.tables import BaseHook, NftChain, NftSet, NftTable, interface_key
from tests.unit.netfilter.rules import rule

MARKS = Marks(0x40000, 0x80000)
MAP = NftSet("by-interface", ("ifname",), verdicts=True)
HOOKS = {"first": BaseHook("prerouting", -300), "second": BaseHook("forward", 0), "third": BaseHook("forward", 1)}
NAMES = [f"c{i}" for i in range(12)]


def random_chain(rng: random.Random, at: int, there: list[str], *, maps: bool) -> tuple[NftRule, ...]:
    """It leads only to later ones of ``there``, and to the map."""
    rules = [rule(jump(name)) for name in there if rng.random() < 0.3 and int(name[1:]) > at]
    if maps and rng.random() < 0.3:
        rules.append(rule(Dispatch(False, MAP.name)))
    if rng.random() < 0.5:
        rules.append(rule(rng.choice((ACCEPT, DROP))))
    if rng.random() < 0.1:
        rules.append(rule(NoTrack(), ACCEPT))
    return tuple(rules)


def random_table(rng: random.Random, before: NftTable) -> NftTable:
    """The same but for some chains, as the packet filter follows operations."""
    there = [name for name in NAMES if rng.random() < 0.8]
    chains = {}
    for at, name in enumerate(NAMES):
        if name not in there:
            continue
        known = before.chains.get(name)
        leads = {one.verdict.chain for one in known.rules if one.verdict is not None} if known else set()
        if known is not None and rng.random() < 0.6 and leads - {""} <= set(there):
            chains[name] = known
        else:
            chains[name] = NftChain(name, random_chain(rng, at, there, maps=at < 6))
    for name, hook in HOOKS.items():
        if rng.random() < 0.8:
            chains[name] = NftChain(name, random_chain(rng, -1, there, maps=True), hook)
    late = [name for name in there if int(name[1:]) >= 6]
    leads = {interface_key(f"cali{i}"): jump(rng.choice(late)) for i in range(rng.randrange(30)) if late}
    return NftTable("ip", "calico-policy", chains, {MAP.name: MAP}, {}, {MAP.name: leads})


def reached(table: NftTable, begins: list[str]) -> set[str]:
    seen, waiting = set(begins), list(begins)
    while waiting:
        for one in table.chains[waiting.pop()].rules:
            more = [one.verdict.chain] if one.verdict is not None and one.verdict.chain else []
            if one.lookups():
                more = [verdict.chain for verdict in table.verdicts[MAP.name].values()]
            waiting += [name for name in more if name not in seen]
            seen.update(more)
    return seen


def chains_of(layout: Layout) -> dict[str, dict[str, tuple[str, ...]]]:
    return {table: {name: rules.lines for name, rules in some.items()} for table, some in layout.chains.items()}


@pytest.mark.parametrize("seed", range(20))
def test_every_change_leads_where_one_step_leads(seed: int) -> None:
    rng = random.Random(seed)
    compiler, table = Compiler(MARKS), NftTable("ip", "calico-policy")
    for _ in range(20):
        table = random_table(rng, table)
        layout, fresh = compiler.layout(table), Compiler(MARKS).layout(table)
        assert chains_of(layout) == chains_of(fresh) and layout.hooks == fresh.hooks
        hooked = set()
        for name, where in (("first", RAW), ("second", FILTER), ("third", FILTER)):
            if name in table.chains:
                mine = reached(table, [name])
                hooked |= mine
                assert {chain_name(one) for one in mine} <= layout.chains[where].keys()
        ours = {chain_name(name): name for name in table.chains}
        in_raw = {ours[name] for name in layout.chains[RAW] if name in ours}
        assert in_raw == (reached(table, ["first"]) if "first" in table.chains else set())
        for name in {ours[name] for name in layout.chains[FILTER] if name in ours} - hooked:
            fitting = reached(table, [name])
            assert not any(NoTrack() in one.actions for c in fitting for one in table.chains[c].rules)


def test_only_what_changed_is_another_object() -> None:
    compiler = Compiler(MARKS)
    chains = {
        "first": NftChain("first", (rule(jump("a")), rule(jump("b"))), HOOKS["second"]),
        "a": NftChain("a", (rule(DROP),)),
        "b": NftChain("b", (rule(DROP),)),
    }
    before = dict(compiler.layout(NftTable("ip", "calico-policy", dict(chains))).chains[FILTER])
    chains["b"] = NftChain("b", (rule(ACCEPT),))
    after = compiler.layout(NftTable("ip", "calico-policy", dict(chains))).chains[FILTER]
    assert {name for name, rules in after.items() if rules is not before.get(name)} == {
        chain_name("b"),
        "cali-p-do-40000-40000",
    }


def test_what_is_not_there_is_named_and_then_forgiven() -> None:
    compiler, there = Compiler(MARKS), NftChain("a", (rule(DROP),))
    chains = {"first": NftChain("first", (rule(jump("a")),), HOOKS["second"])}
    with pytest.raises(NotExpressed, match="leads to the chain a, which is not there"):
        compiler.layout(NftTable("ip", "calico-policy", chains))
    fixed = NftTable("ip", "calico-policy", {**chains, "a": there})
    assert chains_of(compiler.layout(fixed)) == chains_of(Compiler(MARKS).layout(fixed))


def test_a_comment_is_cut_to_what_iptables_takes() -> None:
    """In bytes, without half a character."""
    chains = {"first": NftChain("first", (rule(DROP, comment="\u00e9" * 200),), HOOKS["second"])}
    laid_out = Compiler(MARKS).layout(NftTable("ip", "t", chains)).chains[FILTER]
    assert "".join(map(str, laid_out.values())).count("\u00e9") == 100
