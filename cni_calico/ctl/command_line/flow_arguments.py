"""The command line of ``calicoctl flows``.

Rule: only describes what can be given; filters keep their order. What can never be met is refused: an empty answer, and
no denied flow for --fail-if-denied, would be taken for true.
"""

from __future__ import annotations

import shlex
from argparse import Action, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cni_calico.ctl.command_line.parsers import CommandParser, Commands
from cni_calico.ctl.output.values import is_jsonpath
from cni_calico.errors import InvalidConfig

FORMATS = ("table", "wide", "dict", "json", "jsonl", "yaml")
_WORDS = {"FORWARDED": "allowed", "DROPPED": "denied", "ALLOWED": "allowed", "DENIED": "denied"}
_AUDIT = "AUDIT"
_VERDICTS = "allowed or denied (also FORWARDED, DROPPED), or AUDIT: allowed, and staged policies would deny it"
# option, field of the query, what it takes, help
_FILTERS = (
    (("--from", "--from-pod"), "from", "[NS/]POD|ADDRESS", "source: the beginning of a name, or an address"),
    (("--to", "--to-pod"), "to", "[NS/]POD|ADDRESS", "destination"),
    (("--pod",), "pod", "[NS/]POD|ADDRESS", "source or destination"),
    (("-n", "--namespace"), "namespace", "NS", "namespace of the source or the destination"),
    (("--from-label",), "from-label", "KEY[=VALUE]", "a label of the source"),
    (("--to-label",), "to-label", "KEY[=VALUE]", "a label of the destination"),
    (("--label",), "label", "KEY[=VALUE]", "a label of the source or the destination"),
    (("--service",), "service", "[NS/]NAME|ADDRESS", "a service it was sent to (a name: API server or FlowsNames=All)"),
    (("--ip",), "ip", "ADDRESS", "address of the source or the destination"),
    (("--port",), "port", "PORT", "port of the destination"),
    (("--protocol",), "protocol", "NAME|NUMBER", "tcp, udp, icmp, icmp6, sctp or a number"),
    (("--policy",), "policy", "[NS/]NAME", "a policy that decided"),
    (("--tier",), "tier", "NAME", "tier of what decided"),
    (("--verdict",), "verdict", "allowed|denied|AUDIT", "what was decided; AUDIT: allowed, staged policies would deny"),
)
FIELDS_OF_OPTIONS = {option: field for options, field, *_ in _FILTERS for option in options}
_LONG = {field: options[-1] if len(options[0]) == 2 else options[0] for options, field, *_ in _FILTERS} | {
    "staged": "--staged"
}


_ALONE = "AUDIT is --verdict allowed with --staged denied, and goes with no other --verdict, --staged or --not"
Filter = tuple[str, str, bool]  # field, value, whether it must not be met


def _name(text: str) -> str:
    """All raise ValueError with what was expected, "" for the option's METAVAR."""
    if not text.strip():
        raise ValueError
    return text


def _path(text: str) -> str:
    """A name with or without its namespace, or an address."""
    with suppress(ValueError):
        return _address(text)
    if text.count("/") > 1:
        raise ValueError
    return _name(text)


def _address(text: str) -> str:
    from ipaddress import ip_address

    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError("one address, not a network or a part") from None


def _label(text: str) -> str:
    if not text.partition("=")[0].strip():
        raise ValueError
    return text


def _port_number(text: str) -> str:
    try:
        return str(_port(text))
    except ArgumentTypeError:
        raise ValueError("a number up to 65535") from None


def _protocol(text: str) -> str:
    from cni_calico.flows.query import PROTOCOLS

    name = text.lower().replace("icmpv6", "icmp6")
    number = int(name) if name.isascii() and name.isdecimal() and len(name) < 4 else -1
    if name in PROTOCOLS.values():
        return name
    if not 0 <= number < 256:
        raise ValueError(f"{', '.join(PROTOCOLS.values())} or a number up to 255")
    return PROTOCOLS.get(number, str(number))


_VALUES: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(("from", "to", "pod", "service", "policy"), _path),
    **dict.fromkeys(("from-label", "to-label", "label"), _label),
    **{"ip": _address, "port": _port_number, "protocol": _protocol},
}


class FilterAction(Action):
    """Appends (field, value, negated) to ``filters``; a --not before it is used up."""

    def __call__(self, _: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None) -> None:
        known, negated = list(namespace.filters or ()), bool(namespace.negate)
        if self.const == "verdict":
            known += self._verdict(str(values), namespace, negated=negated)
        else:
            known.append((self.const, self._value(str(values)), negated))
        namespace.filters, namespace.negate = known, False

    def _value(self, text: str) -> str:
        """As flows have it. Raises ArgumentError."""
        try:
            return _VALUES.get(self.const, _name)(text)
        except ValueError as e:
            raise ArgumentError(self, f"expected {str(e) or self.metavar}, got {text!r}") from None

    def _verdict(self, text: str, namespace: Namespace, *, negated: bool) -> list[Filter]:
        """Raises ArgumentError."""
        others = {field for field, *_ in namespace.filters or ()}
        if text.upper() == _AUDIT:
            if negated or others & {"verdict", "staged"}:
                raise ArgumentError(self, _ALONE)
            namespace.audit = namespace.staged = True
            return [("verdict", "allowed", False), ("staged", "denied", False)]
        if namespace.audit:
            raise ArgumentError(self, _ALONE)
        verdict = _WORDS.get(text.upper())
        if verdict is None:
            raise ArgumentError(self, f"expected {_VERDICTS}; got {text!r}")
        return [("verdict", verdict, negated)]


def add_flows(commands: Commands, common: CommandParser) -> None:
    """Add the command."""
    flows = commands.add("flows", common)
    _add_filters(flows)
    flows.add_argument("--host", action="store_true", help="of this host only, even if there is a cluster")
    flows.add_argument(
        "--node", action="append", default=[], dest="nodes", metavar="NODE", help="of that node of the cluster only"
    )
    flows.add_argument("-f", "--follow", action="store_true", help="then print new ones, until interrupted")
    flows.add_argument("--aggregate", action="store_true", help="add up flows with the same ends, port and rules")
    flows.add_argument("--fail-if-denied", action="store_true", help="exit with 3 if a flow that is shown was denied")
    flows.add_argument("-v", "--verbose", action="store_true", help="with the command that explains a denied flow")
    _output(flows)
    flows.add_argument(
        "--web",
        type=_port,
        nargs="?",
        const=0,
        default=None,
        metavar="PORT",
        help="serve a page on this host's loopback addresses, until interrupted (default a free port)",
    )
    flows.add_argument("--html", default="", metavar="FILE", help="write the page, with these flows inside")
    flows.add_argument(
        "--expectations", default="", metavar="FILE", help="write there what was decided, for 'calicoctl policy test'"
    )


class StagedAction(Action):
    """Shows what staged policies would do; with a value it is a filter, too."""

    def __call__(self, _: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None) -> None:
        namespace.staged = True
        if values != "any" or namespace.negate:
            if namespace.audit:
                raise ArgumentError(self, _ALONE)
            namespace.filters = [*(namespace.filters or ()), ("staged", str(values), bool(namespace.negate))]
            namespace.negate = False


def _add_filters(flows: CommandParser) -> None:
    flows.set_defaults(filters=[], negate=False, staged=False, audit=False)
    flows.add_argument(
        "--staged",
        action=StagedAction,
        nargs="?",
        const="any",
        default=False,
        choices=("any", "allowed", "denied", "changed"),
        dest="staged",
        help="what staged policies would do; with a word only flows that would be so (or of which it is unknown)",
    )
    for options, field, metavar, text in _FILTERS:
        flows.add_argument(
            *options, action=FilterAction, const=field, default=None, dest=f"by_{field}", metavar=metavar, help=text
        )
    flows.add_argument("--not", dest="negate", action="store_true", help="the next filter must not be met")
    flows.add_argument("--last", type=int, default=None, metavar="N", help="the newest N (default 20)")
    flows.add_argument("--first", type=int, default=None, metavar="N", help="the oldest N")
    flows.add_argument("--since", default="", metavar="5m|TIME", help="for so long, or since a time (RFC 3339)")
    flows.add_argument("--until", default="", metavar="5m|TIME", help="up to then")


def _output(flows: CommandParser) -> None:
    listed = "|".join(FORMATS)
    flows.add_argument(
        "-o", "--output", type=_format, default="table", metavar="FORMAT", help=f"{listed}|jsonpath=TEMPLATE"
    )


def _format(text: str) -> str:
    if text in (*FORMATS, "compact") or is_jsonpath(text):
        return text
    raise ArgumentTypeError(f"expected {', '.join(FORMATS)}, compact or jsonpath=..., got {text!r}")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 <= int(text) < 65536:
        raise ArgumentTypeError(f"expected a port, up to 65535, got {text!r}")
    return int(text)


# -- the same words on a page -----------------------------------------------------------------------------------------


def parse_filters(text: str) -> Namespace:
    """What the field of a page says: filters, --last, --since and --until. Raises InvalidConfig."""
    parser = CommandParser(prog="filter", add_help=False)
    _add_filters(parser)
    parser.set_defaults(follow=False, aggregate=False)
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise InvalidConfig(f"filter: {e}") from e
    found: Namespace = parser.parse_args(words)
    return found


def page_words(arguments: Namespace) -> str:
    """What ``parse_filters`` understands, of a whole command line."""
    words = [
        f"{'--not ' if negated else ''}{_word(_LONG[field], value)}" for field, value, negated in arguments.filters
    ]
    limits = {
        "--last": arguments.last,
        "--first": arguments.first,
        "--since": arguments.since,
        "--until": arguments.until,
    }
    given = (_word(option, str(value)) for option, value in limits.items() if value not in (None, ""))
    return " ".join([*words, *given])


def _word(option: str, value: str) -> str:
    return f"{option}{'=' if value.startswith('-') else ' '}{shlex.quote(value)}"
