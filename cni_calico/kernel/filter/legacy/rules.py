"""PURE: a rule of the packet filter as rules of legacy iptables.

Rule: a packet gets the verdict that nf_tables would give it. What cannot be expressed raises CannotExpress and is
refused like anything that a kernel refuses: who depends on it is denied.

In nf_tables ``accept`` ends the base chain, from however deep a chain. In iptables a chain can only return to the one
that jumped to it. So the rule sets the mark bit ``accept`` and returns, and behind each jump a rule returns again if
the bit is set. Chains that set marks are entered with ``-g``: when they end, the chain that jumped last goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cni_calico.kernel.filter.legacy.matches import CannotExpress, Marks, ParsedRule, has_mark, quoted, set_marks
from cni_calico.kernel.filter.legacy.names import CHAINS, chain_name
from cni_calico.kernel.filter.legacy.port_chains import PortChain
from cni_calico.netfilter.rules import NftRule, RejectPacket
from cni_calico.netfilter.tables import NftTable

_LOG_PREFIX = 29
_UNREACHABLE = {(4, 3): "icmp-port-unreachable", (6, 4): "icmp6-port-unreachable"}


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
    parsed = ParsedRule(table, marks)
    for expression in rule.expressions:
        parsed.take(expression)
    for prelude, match in parsed.matches():
        if prelude and tuple(prelude) != done.prelude:
            done.rules += prelude
            done.prelude = tuple(prelude)
        _act(parsed, match, marks, done, base=base)
    done.actions += parsed.port_chains


def _act(parsed: ParsedRule, match: str, marks: Marks, done: Compiled, *, base: bool) -> None:
    before = f"{match} " if match else ""
    verdict = parsed.verdict.kind if parsed.verdict is not None else ""
    sets = parsed.bits or parsed.notrack
    if verdict in ("accept", "return"):
        accepts = verdict == "accept" and not base
        bit = marks.accept if accepts else 0
        if not sets and not bit:
            done.rules.append(f"{before}-j RETURN")
            return
        action = ActionChain(parsed.value | bit, parsed.bits | bit, parsed.notrack)
        done.actions.append(action)
        done.rules.append(f"{before}-g {action.name}")
    elif sets and (verdict or parsed.map or parsed.log or parsed.reject or (parsed.bits and parsed.notrack)):
        raise CannotExpress("iptables cannot set a mark and do that in one rule")
    elif parsed.bits:
        done.prelude = ()
        done.rules.append(f"{before}-j {set_marks(parsed.value, parsed.bits)}")
    elif parsed.notrack:
        done.rules.append(f"{before}-j CT --notrack")
    elif parsed.log is not None:
        done.rules.append(
            f"{before}-j LOG --log-level {parsed.log.level} --log-prefix {_log_prefix(parsed.log.prefix)}"
        )
    elif parsed.reject is not None:
        done.rules.append(f"{before}-j REJECT --reject-with {_rejection(parsed.reject)}")
    elif verdict == "drop":
        done.rules.append(f"{before}-j DROP")
    elif parsed.map is not None:
        done.maps.append(parsed.map)
        _jump(map_chain(*parsed.map), before, marks, done)
    elif verdict in ("jump", "goto") and parsed.verdict is not None:
        done.chains.append(parsed.verdict.chain)
        if verdict == "goto":
            raise CannotExpress("a rule goes to a chain")
        _jump(chain_name(parsed.verdict.chain), before, marks, done)
    else:
        raise CannotExpress("a rule does nothing")


def _jump(chain: str, before: str, marks: Marks, done: Compiled) -> None:
    done.jumps, done.prelude = True, ()
    done.rules.append(f"{before}-j {chain}")
    done.rules.append(f"{has_mark(marks.accept, marks.accept)} -j RETURN")


def _log_prefix(text: str) -> str:
    """The end says where the prefix ends: it stays."""
    return quoted(text if len(text) <= _LOG_PREFIX else text[: _LOG_PREFIX - 2].rstrip(" :") + ": ")


def _rejection(reject: RejectPacket) -> str:
    if reject.icmp_code is None:
        return "tcp-reset"
    return _UNREACHABLE.get((4, reject.icmp_code)) or _UNREACHABLE[6, reject.icmp_code]
