"""The boot table: from the start of the host until the agent has decided, nothing passes a workload's interface.

Rule: it only drops, before every other rule, and shares no table or chain with the policies, so that neither can undo
the other; whoever takes it away has its own rules in force. It is nftables', for both families at once; legacy iptables
has it where the kernel has no nf_tables. Single interfaces that wait for their policy are closed in the same way, by a
table of their own: the agent takes the boot table away when it has decided, and they stay closed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.legacy import programs
from cni_calico.kernel.filter.nf_tables.filter import NfTables, why_no_nf_tables
from cni_calico.netfilter.rules import DROP, AtInterface, CountPacket, Dispatch, NftRule
from cni_calico.netfilter.tables import (
    AddChain,
    AddRules,
    AddSet,
    AddTable,
    AddVerdicts,
    BaseHook,
    DropElements,
    DropTable,
    NftSet,
    Operation,
    TableId,
    interface_key,
)

NFTABLES, IPTABLES = "nftables", "legacy iptables"
TABLE = TableId("inet", "calico-boot")
CHAIN = "calico-boot"  # of legacy iptables; names that begin with "cali-" are those of upstream's agent, or policies'
WAITING = TableId("inet", "calico-waiting")
_WAITING_CHAIN = "calico-waiting"  # of legacy iptables
_WAITING_SET = NftSet("interfaces", ("ifname",), verdicts=True)
_FIRST = -400  # before connection tracking and everything else that has a number of its own
_DIRECTIONS = {"forward": (False, True), "input": (False,)}  # whether the interface is that of the way out
_COMMENT = "workloads are closed until calico-node has decided"


def ensure_boot_table(prefixes: Sequence[str], deadline: Deadline) -> str:
    """Close the interfaces whose names begin so; returns which packet filter does it, NFTABLES or IPTABLES.

    Raises KernelError: neither can be used, or it refused.
    """
    wanted = plan_table(prefixes)
    no_nf_tables = why_no_nf_tables(wanted, deadline)
    if not no_nf_tables:
        with NfTables() as kernel:
            kernel.apply(wanted, deadline)
        return NFTABLES
    if missing := programs.missing_programs():
        raise KernelError(f"cannot load the boot table: {no_nf_tables}, and for legacy iptables install {missing}")
    for family in _families():
        saved = programs.read_tables(family, deadline)
        programs.restore(family, render_script(prefixes, saved), deadline)
    return IPTABLES


def remove_boot_table(deadline: Deadline) -> bool:
    """Open them again; returns whether they were closed. Raises KernelError."""
    found = read_boot_table(deadline)
    if NFTABLES in found:
        with NfTables() as kernel:
            kernel.apply((DropTable(TABLE),), deadline)
    if IPTABLES in found:
        for family in _families():
            if script := render_removal(programs.read_tables(family, deadline)):
                programs.restore(family, script, deadline)
    return bool(found)


def apply_waiting(
    interfaces: Collection[str],
    deadline: Deadline,
    before: Collection[str] | None = None,
    kernel: NfTables | None = None,
) -> None:
    """Close exactly these interfaces, whose policies are not in force yet; others that were closed so are open.

    ``before``: those of the last call that succeeded, if this process made it; without them everything is written.
    ``kernel``: one that stays open; the kernel lets a socket close only when what was removed has been freed, which
    takes as long as a grace period of its readers (nf_tables' flush of its destroy list).
    Raises KernelError: no packet filter can be used, or it refused; then what was closed still is.
    """
    change = plan_waiting_change(frozenset(before), frozenset(interfaces)) if before is not None else None
    if change is not None and _is_changed(change, deadline, kernel):
        return
    wanted = plan_waiting(interfaces)
    no_nf_tables = why_no_nf_tables(wanted, deadline)
    if not no_nf_tables:
        with NfTables() as kernel:
            kernel.apply(wanted, deadline)
        return
    if missing := programs.missing_programs():
        if interfaces:
            raise KernelError(f"cannot close interfaces: {no_nf_tables}, and for legacy iptables install {missing}")
        return
    for family in _families():
        saved = programs.read_tables(family, deadline)
        script = render_waiting(interfaces, saved) if interfaces else render_removal(saved, _WAITING_CHAIN)
        if script:
            programs.restore(family, script, deadline)


def is_waiting(interfaces: Collection[str], deadline: Deadline) -> bool:
    """Whether all of these are closed by nftables, or cannot be: who flushes it, flushes the whole table. Raises
    KernelError.
    """
    if why_no_nf_tables(plan_waiting(interfaces), deadline):
        return True
    with NfTables() as kernel:
        return kernel.has_table(WAITING, deadline)


def _is_changed(operations: Sequence[Operation], deadline: Deadline, kernel: NfTables | None) -> bool:
    """Whether that was possible; not if somebody else has changed the table."""
    if not operations:
        return True
    try:
        with ExitStack() as stack:
            (kernel or stack.enter_context(NfTables())).apply(operations, deadline)
    except KernelError:
        return False
    return True


def read_boot_table(deadline: Deadline) -> tuple[str, ...]:
    """The packet filters that have a boot table. Raises KernelError."""
    found = []
    if not why_no_nf_tables([AddTable(TABLE)], deadline):
        with NfTables() as kernel:
            if kernel.has_table(TABLE, deadline):
                found.append(NFTABLES)
    if programs.is_in_use() and not programs.missing_programs():
        if any(render_removal(programs.read_tables(family, deadline)) for family in _families()):
            found.append(IPTABLES)
    return tuple(found)


def _families() -> tuple[int, ...]:
    return (4, 6) if programs.has_ipv6() else (4,)


# -- computed ---------------------------------------------------------------------------------------------------------


def plan_table(prefixes: Sequence[str]) -> tuple[Operation, ...]:
    """PURE: the table, in the place of an earlier one, in one transaction."""
    operations: list[Operation] = [AddTable(TABLE), DropTable(TABLE), AddTable(TABLE)]
    for hook, directions in _DIRECTIONS.items():
        rules = [_closing(prefix, is_out) for prefix in prefixes for is_out in directions]
        operations += [AddChain(TABLE, hook, BaseHook(hook, _FIRST)), AddRules(TABLE, hook, tuple(rules))]
    return tuple(operations)


def _closing(prefix: str, is_out: bool) -> NftRule:
    return NftRule((AtInterface(is_out, prefix, is_prefix=True),), (CountPacket(), DROP), _COMMENT)


def plan_waiting(interfaces: Collection[str]) -> tuple[Operation, ...]:
    """PURE: the table of the interfaces that wait, in the place of an earlier one; no table for none."""
    operations: list[Operation] = [AddTable(WAITING), DropTable(WAITING)]
    if not interfaces:
        return tuple(operations)
    closed = {interface_key(name): DROP for name in sorted(interfaces)}
    operations += [AddTable(WAITING), AddSet(WAITING, _WAITING_SET), AddVerdicts(WAITING, _WAITING_SET, closed)]
    for hook, directions in _DIRECTIONS.items():
        rules = [NftRule((), (Dispatch(is_out, _WAITING_SET.name),)) for is_out in directions]
        operations += [AddChain(WAITING, hook, BaseHook(hook, _FIRST)), AddRules(WAITING, hook, tuple(rules))]
    return tuple(operations)


def plan_waiting_change(before: frozenset[str], wanted: frozenset[str]) -> tuple[Operation, ...]:
    """PURE: the difference, in one transaction; it is refused where the table is not what ``before`` says."""
    added = {interface_key(name): DROP for name in sorted(wanted - before)}
    gone = frozenset(map(interface_key, before - wanted))
    operations: list[Operation] = [AddVerdicts(WAITING, _WAITING_SET, added)] if added else []
    return (*operations, *((DropElements(WAITING, _WAITING_SET, gone),) if gone else ()))


def render_script(prefixes: Sequence[str], saved: str) -> str:
    """PURE: the script of iptables-restore that closes them. ``saved``: what iptables-save prints now."""
    return _render_closing(CHAIN, [f"{prefix}+" for prefix in prefixes], saved)


def render_waiting(interfaces: Collection[str], saved: str) -> str:
    """PURE: the script that closes the interfaces that wait, and no others."""
    return _render_closing(_WAITING_CHAIN, sorted(interfaces), saved)


def _render_closing(chain: str, patterns: Sequence[str], saved: str) -> str:
    lines = ["*filter", f":{chain} - [0:0]"]  # which empties the chain if it is there
    lines += [f"-A {chain} {direction} {pattern} -j DROP" for pattern in patterns for direction in ("-i", "-o")]
    # first again, if something was put before it
    lines += [*_jumps(saved, "-D", chain), *(f"-I {hook.upper()} -j {chain}" for hook in _DIRECTIONS)]
    return "\n".join([*lines, "COMMIT", ""])


def render_removal(saved: str, chain: str = CHAIN) -> str:
    """PURE: the script that opens them again, "" if there is nothing of it."""
    if not any(line.startswith(f":{chain} ") for line in saved.splitlines()):
        return ""
    return "\n".join(["*filter", *_jumps(saved, "-D", chain), f"-F {chain}", f"-X {chain}", "COMMIT", ""])


def _jumps(saved: str, verb: str, chain: str) -> list[str]:
    found = [line for line in saved.splitlines() if line.startswith("-A ") and line.endswith(f" -j {chain}")]
    return [line.replace("-A", verb, 1) for line in found]
