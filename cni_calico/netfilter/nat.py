"""PURE: destination NAT as other programs write it: what a connection to a published port becomes.

Rule: only what is certain is followed. A rule that may translate and is not understood, in what it matches or in what
it does, is named; where it certainly matches, nothing behind it is reached.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

NatAddress = IPv4Address | IPv6Address
NatNetwork = IPv4Network | IPv6Network
PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}
_WITHOUT_MEANING = ("--comment", "-m")  # and their argument
_WITH_ARGUMENT = (
    *_WITHOUT_MEANING,
    "-s",
    "-d",
    "-p",
    "-j",
    "-g",
    "--dst-type",
    "--dport",
    "--dports",
    "--to-destination",
)
_WITHOUT_ARGUMENT = (
    "--random",
    "--random-fully",
    "--persistent",
)  # of a translation to one address and port: no matter
_NFT_ACTIONS = ("accept", "drop", "return", "dnat", "redirect", "masquerade", "tproxy", "queue")
# targets after which the next rule is reached; others than these, chains, RETURN and ACCEPT may translate
_GO_ON = frozenset(("", "MARK", "CONNMARK", "LOG", "NFLOG", "TRACE", "SET", "TOS", "DSCP"))
_DEPTH = 16


@dataclass(frozen=True, slots=True)
class NatConnection:
    """The first packet of a connection, as it comes to the host, or as the host itself sends it (``from_host``).
    ``is_local``: the destination is an address of this host.
    """

    source: NatAddress
    destination: NatAddress
    protocol: int
    port: int
    is_local: bool
    from_host: bool


@dataclass(frozen=True, slots=True)
class Translation:
    address: NatAddress
    port: int


@dataclass(slots=True)
class NatRule:
    """``test`` values None do not test. Each of ``unknown`` is a match that is not understood."""

    text: str
    source: NatNetwork | None = None
    not_source: NatNetwork | None = None
    destination: NatNetwork | None = None
    not_destination: NatNetwork | None = None
    protocol: int | None = None
    ports: tuple[tuple[int, int], ...] = ()
    local: bool | None = None
    target: str = ""  # a chain, or a word of the filter's
    goto: bool = False  # a chain that does not come back to the next rule
    to: Translation | None = None
    is_unclear: bool = False  # what it does is not understood
    unknown: list[str] = field(default_factory=list)

    def fits(self, connection: NatConnection) -> bool:
        """As far as it is understood."""
        ports = self.ports or ((0, 65535),)
        return (
            (self.source is None or connection.source in self.source)
            and (self.not_source is None or connection.source not in self.not_source)
            and (self.destination is None or connection.destination in self.destination)
            and (self.not_destination is None or connection.destination not in self.not_destination)
            and (self.protocol is None or connection.protocol == self.protocol)
            and any(low <= connection.port <= high for low, high in ports)
            and (self.local is None or connection.is_local == self.local)
        )


@dataclass(frozen=True, slots=True)
class NatTable:
    """``by``: whose rules they are, in words. ``first``: the chains of the hooks, for what comes in and for what the
    host itself sends.
    """

    by: str
    chains: Mapping[str, Sequence[NatRule]]
    first: tuple[str, str]

    def translate(self, connection: NatConnection) -> tuple[Translation | None, list[str]]:
        """What the connection's destination becomes, None: it stays; and the rules that were passed over."""
        passed: list[str] = []
        found = next(self._walk(self.first[connection.from_host], connection, passed, _DEPTH), None)
        return found, passed

    def _walk(
        self, chain: str, connection: NatConnection, passed: list[str], depth: int
    ) -> Iterator[Translation | None]:
        """Where the connection ends: None is untranslated, or not known how, and nothing that it comes back."""
        for rule in self.chains.get(chain, ()) if depth else ():
            if not rule.fits(connection):
                continue
            is_chain = rule.target in self.chains
            ends = rule.target in ("RETURN", "ACCEPT")
            if rule.unknown:
                passed += [rule.text] if is_chain or not (ends or rule.target in _GO_ON) else []
            elif rule.to is not None and not rule.is_unclear:
                yield rule.to
            elif rule.target == "RETURN":
                return
            elif rule.target == "ACCEPT":
                yield None
            elif is_chain:
                yield from self._walk(rule.target, connection, passed, depth - 1)
                if rule.goto:
                    return
            elif rule.target not in _GO_ON:
                passed.append(rule.text)
                yield None


# -- iptables-save ----------------------------------------------------------------------------------------------------


def parse_iptables(text: str, by: str) -> NatTable:
    """The table nat in what ``iptables-save -t nat`` prints."""
    chains: dict[str, list[NatRule]] = {}
    for line in text.splitlines():
        if line.startswith(":"):
            chains.setdefault(line[1:].split(" ")[0], [])
        elif line.startswith("-A "):
            try:
                words = shlex.split(line)
            except ValueError:
                continue
            chains.setdefault(words[1], []).append(_parse_words(line, words[2:]))
    return NatTable(by, chains, ("PREROUTING", "OUTPUT"))


def _parse_words(text: str, words: list[str]) -> NatRule:
    rule, negated = NatRule(text), False
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word == "!":
            negated = True
            continue
        if word in _WITHOUT_ARGUMENT:
            continue
        arguments = [rest.popleft()] if word in _WITH_ARGUMENT and rest else []
        while word not in _WITH_ARGUMENT and rest and rest[0] != "!" and not rest[0].startswith("-"):
            arguments.append(rest.popleft())
        value = " ".join(arguments)
        try:
            known = _add_option(rule, word, value, negated)
        except ValueError:
            known = False
        if not known and rule.target:  # what follows -j belongs to it
            rule.is_unclear = True
        elif not known:
            rule.unknown.append(f"{word} {value}")
        negated = False
    return rule


def _add_option(rule: NatRule, word: str, value: str, negated: bool) -> bool:
    """Whether the option is understood. Raises ValueError."""
    if word in _WITHOUT_MEANING:
        return True
    if word in ("-s", "-d"):
        _add_network(rule, word, ip_network(value, strict=False), negated)
        return True
    if word == "--dst-type" and value == "LOCAL":
        rule.local = not negated
        return True
    if negated:
        return False
    if word == "-p" and value in PROTOCOLS:
        rule.protocol = PROTOCOLS[value]
    elif word in ("--dport", "--dports"):
        rule.ports = tuple(_parse_ports(value.split(",")))
    elif word in ("-j", "-g"):
        rule.target, rule.goto = value, word == "-g"
    elif word == "--to-destination":
        rule.to = _parse_translation(value, rule)
    else:
        return False
    return True


def _add_network(rule: NatRule, word: str, network: NatNetwork, negated: bool) -> None:
    if word == "-s" and negated:
        rule.not_source = network
    elif word == "-s":
        rule.source = network
    elif negated:
        rule.not_destination = network
    else:
        rule.destination = network


def _parse_ports(texts: Iterable[str]) -> Iterator[tuple[int, int]]:
    for text in texts:
        low, _, high = text.partition(":")
        yield int(low), int(high or low)


def _parse_translation(text: str, rule: NatRule) -> Translation:
    """``10.65.0.2:80``, ``[fd65::2]:80`` or an address alone, which keeps the port. Raises ValueError."""
    host, port = text, 0
    if text.startswith("["):
        host, _, after = text[1:].partition("]")
        port = int(after.removeprefix(":") or 0)
    elif text.count(":") == 1:
        host, _, after = text.partition(":")
        port = int(after)
    kept = rule.ports[0][0] if len(rule.ports) == 1 else 0
    if not port and not kept:
        raise ValueError(text)
    return Translation(ip_address(host), port or kept)


# -- nft --------------------------------------------------------------------------------------------------------------


def hooked_tables(items: Iterable[Mapping[str, Any]], family: str) -> list[tuple[str, str]]:
    """Family and name of each table with chains that translate destinations, for packets of ``family``, in what ``nft
    -j list chains`` gives.
    """
    chains = [chain for item in items if isinstance(chain := item.get("chain"), Mapping)]
    return list(
        dict.fromkeys(
            (str(chain.get("family")), str(chain.get("table")))
            for chain in chains
            if chain.get("type") == "nat"
            and chain.get("hook") in ("prerouting", "output")
            and chain.get("family") in (family, "inet")
        )
    )


def parse_nft(items: Iterable[Mapping[str, Any]], by: str, first: tuple[str, str]) -> NatTable:
    """A table as ``nft -j list table`` gives it, with chains of these names at its hooks."""
    chains: dict[str, list[NatRule]] = {}
    for item in items:
        raw, chain = item.get("rule"), item.get("chain")
        if isinstance(chain, Mapping):
            chains.setdefault(str(chain.get("name")), [])
        if isinstance(raw, Mapping):
            chains.setdefault(str(raw.get("chain")), []).append(_parse_expressions(raw))
    return NatTable(by, chains, first)


def _parse_expressions(raw: Mapping[str, Any]) -> NatRule:
    rule = NatRule(f"{raw.get('chain')}: {raw.get('comment') or raw.get('expr')}")
    for expression in raw.get("expr") or ():
        try:
            known = _add_expression(rule, expression)
        except (ValueError, TypeError, KeyError, AttributeError):
            known = rule.is_unclear
        if not known:
            rule.unknown.append(str(expression))
    return rule


def _add_expression(rule: NatRule, expression: Mapping[str, Any]) -> bool:
    [(name, value)] = expression.items()
    if name in ("jump", "goto"):
        rule.target, rule.goto = str(value["target"]), name == "goto"
    elif name in _NFT_ACTIONS:
        rule.target = name.upper()
        if name == "dnat":
            rule.is_unclear = True  # until all of it is read
            rule.to = Translation(ip_address(value["addr"]), int(value.get("port") or 0))
            rule.is_unclear = not rule.to.port
    elif name == "vmap":
        rule.target = name.upper()
        return False
    elif name == "match" and value["op"] == "==":
        return _add_match(rule, value["left"], value["right"])
    else:
        return name == "counter"
    return True


def _add_match(rule: NatRule, left: Mapping[str, Any], right: Any) -> bool:
    fib, payload = left.get("fib"), left.get("payload") or {}
    if fib is not None:
        rule.local = right == "local"
        return bool(fib == {"result": "type", "flags": ["daddr"]} or fib == {"result": "type", "flags": "daddr"})
    protocol, where = payload.get("protocol"), payload.get("field")
    if where == "dport" and protocol in PROTOCOLS:
        rule.protocol = PROTOCOLS[protocol]
        rule.ports = ((int(right), int(right)),)
    elif protocol in ("ip", "ip6") and where == "daddr":
        rule.destination = ip_network(right)
    elif protocol in ("ip", "ip6") and where == "saddr":
        rule.source = ip_network(right)
    else:
        return False
    return True
