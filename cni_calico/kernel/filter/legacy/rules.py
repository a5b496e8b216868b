"""PURE: a rule of the packet filter as rules of legacy iptables.

Rule: a packet gets the verdict that nf_tables would give it. What cannot be expressed raises CannotExpress and is
refused like anything that a kernel refuses: who depends on it is denied.

In nf_tables ``accept`` ends the base chain, from however deep a chain. In iptables a chain can only return to the one
that jumped to it. So the rule sets the mark bit ``accept`` and returns, and behind each jump a rule returns again if
the bit is set. Chains that set marks are entered with ``-g``: when they end, the chain that jumped last goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cni_calico.kernel.filter.legacy.matches import (
    FAMILY,
    CannotExpress,
    Marks,
    has_mark,
    interface_option,
    match_all,
    quoted,
    set_marks,
)
from cni_calico.kernel.filter.legacy.names import CHAINS, chain_name
from cni_calico.kernel.filter.legacy.port_chains import PortChain
from cni_calico.netfilter.rules import (
    ACCEPT,
    RETURN,
    ConnectionLimit,
    CountPacket,
    Dispatch,
    LogPacket,
    NftRule,
    NoTrack,
    PacketVerdict,
    RateLimit,
    Reject,
    ReportDecision,
    RuleAction,
    SetDscp,
    SetMark,
    SetMarkTo,
)
from cni_calico.netfilter.tables import NftTable

_LOG_PREFIX = 29
_UNREACHABLE = {4: "icmp-port-unreachable", 6: "icmp6-port-unreachable"}


@dataclass(frozen=True, slots=True)
class ActionChain:
    """A chain that is gone to: it does what a rule cannot do besides returning."""

    value: int = 0
    bits: int = 0
    notrack: bool = False

    @property
    def name(self) -> str:
        return f"{CHAINS}do-{self.value:x}-{self.bits:x}{'n' if self.notrack else ''}"

    def rules(self) -> tuple[str, ...]:
        untracked = ("-j CT --notrack",) if self.notrack else ()
        return (*untracked, *((f"-j {set_marks(self.value, self.bits)}",) if self.bits else ()))


@dataclass(slots=True)
class Compiled:
    """``rules``: without "-A" and the chain's name. ``chains``: the neutral names of chains that they lead to.

    ``maps``: (map, option of iptables) they look up. ``actions``: chains that have to be there. ``prelude``: what the
    mark bit ``scratch`` tells at this point; the next rule need not test it again.
    """

    rules: list[str] = field(default_factory=list)
    chains: list[str] = field(default_factory=list)
    maps: list[tuple[str, str]] = field(default_factory=list)
    actions: list[ActionChain | PortChain] = field(default_factory=list)
    prelude: tuple[str, ...] = ()
    jumps: bool = False  # whether the accept bit may be set when they come back


def map_chain(name: str, option: str, prefix: str = "") -> str:
    """``option``: -i, -o."""
    return chain_name(f"by{option}/{name}{'/' + prefix if prefix else ''}")


def compile_rule(rule: NftRule, table: NftTable, marks: Marks, *, base: bool, done: Compiled) -> None:
    """Add it to ``done``. ``table``: where its sets are. ``base``: it stands in the chain of a stage.

    Raises CannotExpress.
    """
    matches = match_all(rule.tests, table, marks)
    # iptables counts in every rule; a limit is asked once for each rule that has it
    limited = any(isinstance(test, RateLimit | ConnectionLimit) for test in rule.tests)
    reports = () if limited else tuple(action for action in rule.actions if isinstance(action, ReportDecision))
    acts = [action for action in rule.actions if not isinstance(action, CountPacket | ReportDecision)]
    for prelude, match in matches.alternatives:
        if prelude and tuple(prelude) != done.prelude:
            done.rules += prelude
            done.prelude = tuple(prelude)
        done.rules += (f"{match} {_report(report)}".lstrip() for report in reports)
        _act(acts, FAMILY[table.family], f"{match} " if match else "", marks, done, base=base)
    done.actions += matches.port_chains


def _report(action: ReportDecision) -> str:
    """A rule of its own before that of the verdict."""
    unless_known = "-m conntrack ! --ctstatus CONFIRMED " if action.once else ""
    to = f"--nflog-prefix {action.number:08x} --nflog-group {action.group} --nflog-size 64 --nflog-threshold 32"
    return f"{unless_known}-j NFLOG {to}"


def _act(actions: Sequence[RuleAction], family: int, before: str, marks: Marks, done: Compiled, *, base: bool) -> None:
    """A rule of iptables does one thing; what comes before ``accept`` or ``return`` can be done in a chain."""
    if not actions:
        raise CannotExpress("a rule does nothing")
    *earlier, last = actions
    if last in (ACCEPT, RETURN) and all(isinstance(action, SetMark | NoTrack) for action in earlier):
        _return(earlier, before, marks if last == ACCEPT and not base else None, done)
        return
    if earlier:
        raise CannotExpress(f"iptables cannot do this in one rule: {', '.join(map(str, actions))}")
    match last:
        case SetMark(bit, cleared):
            done.prelude = ()
            done.rules.append(f"{before}-j {set_marks(0 if cleared else bit, bit)}")
        case SetMarkTo(bits, value):
            done.prelude = ()
            done.rules.append(f"{before}-j {set_marks(value, bits)}")
        case SetDscp(value):
            done.rules.append(f"{before}-j DSCP --set-dscp {value:#04x}")
        case NoTrack():
            done.rules.append(f"{before}-j CT --notrack")
        case LogPacket(group=group) if group:
            raise CannotExpress("reports to a program are for nf_tables only")
        case LogPacket(prefix, level):
            done.rules.append(f"{before}-j LOG --log-level {level} --log-prefix {_log_prefix(prefix)}")
        case Reject(with_reset):
            how = "tcp-reset" if with_reset else _UNREACHABLE[family]
            done.rules.append(f"{before}-j REJECT --reject-with {how}")
        case Dispatch(is_out, name):
            looked_up = name, interface_option(is_out=is_out)
            done.maps.append(looked_up)
            _jump(map_chain(*looked_up), before, marks, done)
        case PacketVerdict("drop"):
            done.rules.append(f"{before}-j DROP")
        case PacketVerdict("jump", chain):
            done.chains.append(chain)
            _jump(chain_name(chain), before, marks, done)
        case _:
            raise CannotExpress(f"iptables has nothing for {last}")


def _return(changes: Sequence[RuleAction], before: str, accepting: Marks | None, done: Compiled) -> None:
    """``accepting``: the accept bit is set, too."""
    value = bits = accepting.accept if accepting is not None else 0
    for action in changes:
        if isinstance(action, SetMark):
            bits |= action.bit
            value = value & ~action.bit if action.cleared else value | action.bit
    if not changes and not bits:
        done.rules.append(f"{before}-j RETURN")
        return
    action_chain = ActionChain(value, bits, NoTrack() in changes)
    done.actions.append(action_chain)
    done.rules.append(f"{before}-g {action_chain.name}")


def _jump(chain: str, before: str, marks: Marks, done: Compiled) -> None:
    done.jumps, done.prelude = True, ()
    done.rules.append(f"{before}-j {chain}")
    done.rules.append(f"{has_mark(marks.accept, marks.accept)} -j RETURN")


def _log_prefix(text: str) -> str:
    """The end says where the prefix ends: it stays."""
    return quoted(text if len(text) <= _LOG_PREFIX else text[: _LOG_PREFIX - 2].rstrip(" :") + ": ")
