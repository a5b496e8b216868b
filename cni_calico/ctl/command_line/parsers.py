"""What the commands of calicoctl have in common: how their parsers are made, fail, and show their examples.

Rule: errors are raised, never printed; they suggest the word that was probably meant.
"""

from __future__ import annotations

import argparse
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    ArgumentTypeError,
    _SubParsersAction,
)
from collections.abc import Callable
from typing import Any, NoReturn

from cni_calico.ctl.command_line.help_format import HelpFormat
from cni_calico.ctl.command_line.help_texts import COMMANDS
from cni_calico.ctl.command_line.node_help import Help
from cni_calico.ctl.input.nearest import did_you_mean
from cni_calico.ctl.output.values import TABLE, require_value_format
from cni_calico.ctl.settings import DEFAULT_PATH
from cni_calico.errors import InvalidConfig

# argparse's words stay English: looking for translations of them takes 3 ms
vars(argparse)["_"] = str

LOG_LEVELS = ("panic", "fatal", "error", "warn", "info", "debug")


class CommandParser(ArgumentParser):
    """An argparse parser that raises its errors, so that main decides how the program ends, and suggests the word that
    was probably meant. What takes time is deferred until it is needed: ``fill`` adds a group's commands, ``text``
    becomes the help.
    """

    def __init__(self, *, text: Help | None = None, program: str = "", **options: Any) -> None:
        super().__init__(formatter_class=HelpFormat, **options)
        self.text = text
        self.program = program
        self.fill: Callable[[], None] | None = None

    def complete(self) -> None:
        """Add what was deferred."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.complete()
        return super().parse_known_args(args, namespace)

    def format_usage(self) -> str:
        self.complete()
        return super().format_usage()

    def format_help(self) -> str:
        self.complete()
        if self.text is not None:
            self.description, self.epilog = description(self.text), render_examples(self.text, self.program)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise InvalidConfig(f"{self.prog}: {message}", details=self.format_usage().strip())

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        near = did_you_mean(str(value), map(str, action.choices))
        what = "command" if isinstance(action, _SubParsersAction) else "/".join(action.option_strings) or action.dest
        known = ", ".join(map(str, action.choices))
        raise ArgumentError(None, f"there is no {what} {value!r}: {near or 'known are ' + known}")


class Commands:
    """Adds commands whose texts stand in help_texts.py, below the command ``group``."""

    def __init__(self, parser: CommandParser, program: str, group: str = "", dest: str = "subcommand") -> None:
        self.program = program
        self.group = group
        self.commands = parser.add_subparsers(
            dest=dest, metavar="COMMAND", required=bool(group), parser_class=CommandParser, prog=parser.prog
        )

    def add(self, name: str, *parents: CommandParser) -> CommandParser:
        path = f"{self.group} {name}".lstrip()
        text = COMMANDS[path]
        parser: CommandParser = self.commands.add_parser(
            name, parents=parents, help=text.summary, text=text, program=self.program
        )
        parser.set_defaults(leaf=parser)
        return parser

    def below(self, name: str, fill: Callable[[Commands], None], dest: str = "subcommand") -> None:
        """A group, whose commands ``fill`` adds."""
        parser = self.add(name)
        parser.fill = lambda: fill(Commands(parser, self.program, f"{self.group} {name}".lstrip(), dest))


def description(text: Help) -> str:
    from textwrap import fill

    first = text.summary[0].upper() + text.summary[1:].removesuffix(".") + "."
    return fill(f"{first} {text.text}".rstrip(), 78)


def render_examples(text: Help, program: str) -> str:
    """The examples as help shows them: the purpose, and below it the command line."""
    lines = [f"  # {what}\n  {program} {line}" for line, what in text.examples]
    return "examples:\n" + "\n".join(lines) if lines else ""


def flag(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ArgumentTypeError(f"expected true or false, got {text!r}")


def duration_s(text: str) -> float:
    from cni_calico.daemon.settings_table import parse_duration_s

    try:
        return parse_duration_s(text)
    except ValueError as e:
        raise ArgumentTypeError(f"expected a duration such as 1s, 10m or 2h, got {text!r}") from e


def common_options() -> CommandParser:
    common = CommandParser(add_help=False)
    common.add_argument(
        "-c", "--config", default=SUPPRESS, metavar="FILE", help=f"which datastore to use (default {DEFAULT_PATH})"
    )
    common.add_argument("--kubeconfig", default=SUPPRESS, metavar="FILE", help="use this cluster's datastore")
    common.add_argument("--context", default=SUPPRESS, metavar="CONTEXT", help="the kubeconfig's context to use")
    common.add_argument(
        "--timeout", type=float, default=SUPPRESS, metavar="SECONDS", help="give up after this time (default 60)"
    )
    common.add_argument(
        "-l",
        "--log-level",
        choices=LOG_LEVELS,
        default=SUPPRESS,
        metavar="LEVEL",
        help="log requests to the datastore on standard error: panic (nothing, the default), fatal, error, warn, "
        "info (which datastore) or debug (every request)",
    )
    common.add_argument(
        "--allow-version-mismatch",
        action="store_true",
        default=SUPPRESS,
        help="accepted as upstream's; a version of the data never stops this program",
    )
    return common


def output_option(*names: str) -> CommandParser:
    """The option -o for commands whose findings are a table or a document. ``names`` replace -o and --output."""
    options = CommandParser(add_help=False)
    options.add_argument(
        *(names or ("-o", "--output")),
        dest="output",
        type=_value_format,
        default=TABLE,
        metavar="FORMAT",
        help="table|json|yaml|jsonpath=...|jsonpath-file=...|jsonpath-as-json=... (default table)",
    )
    return options


def _value_format(text: str) -> str:
    try:
        require_value_format(text)
    except InvalidConfig as e:
        raise ArgumentTypeError(f"{e}: {e.details}") from e
    return text


def namespace_option() -> CommandParser:
    options = CommandParser(add_help=False)
    options.add_argument("-n", "--namespace", default="", metavar="NS", help="the resources' namespace")
    return options


def writing_options() -> CommandParser:
    options = CommandParser(add_help=False)
    options.add_argument(
        "--allow-unknown-fields", action="store_true", help="store fields that this version does not know"
    )
    return options


def dry_run_option() -> CommandParser:
    options = CommandParser(add_help=False)
    options.add_argument(
        "--dry-run",
        choices=("server", "client", "none"),
        default="none",
        metavar="server|client",
        help="change nothing: server checks against what is stored, client without a datastore",
    )
    return options


def manifest_options(*, required: bool) -> CommandParser:
    options = CommandParser(add_help=False)
    options.add_argument(
        "-f", "--filename", required=required, default="", metavar="FILE", help="a file, a directory, or - (stdin)"
    )
    options.add_argument("-R", "--recursive", action="store_true", help="also read the directories below a directory")
    options.add_argument("-e", "--skip-empty", action="store_true", help="do not fail when there are no resources")
    return options
