"""Writes the manual page of calicoctl and its completion scripts where distributions look for them.

Rule: everything comes from calicoctl's own parser and help texts, so the pages say what the program does.

``share/man/man1/calicoctl.1``, ``share/bash-completion/completions/calicoctl``,
``share/zsh/site-functions/_calicoctl``, ``share/fish/vendor_completions.d/calicoctl.fish``
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPLETIONS = {
    "bash": "bash-completion/completions/calicoctl",
    "zsh": "zsh/site-functions/_calicoctl",
    "fish": "fish/vendor_completions.d/calicoctl.fish",
}


def write_share(directory: Path) -> None:
    """Write the pages below ``directory``, which becomes a part of the bundle."""
    sys.path.insert(0, str(ROOT))
    from cni_calico.ctl.command_line.completion import render_completion

    _write(directory / "man/man1/calicoctl.1", render_manual())
    for shell, name in COMPLETIONS.items():
        _write(directory / name, render_completion(shell))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def render_manual() -> str:
    """The manual page in man(7)'s macros."""
    sys.path.insert(0, str(ROOT))
    from cni_calico import __version__
    from cni_calico.ctl.command_line.arguments import build_parser, leaves
    from cni_calico.ctl.command_line.help_texts import COMMANDS, PROGRAM
    from cni_calico.ctl.command_line.node_help import Help

    def examples(text: Help) -> Iterator[str]:
        for line, what in text.examples:
            yield from (".PP", _escaped(f"{what[0].upper()}{what[1:]}:"), ".RS 4", ".nf")
            yield from (_escaped(f"calicoctl {line}"), ".fi", ".RE")

    parser = build_parser()
    common = {option for action in parser._actions for option in action.option_strings}
    lines = [f'.TH CALICOCTL 1 "" "cni-calico {__version__}" "User Commands"', ".SH NAME"]
    lines += [f"calicoctl \\- {_escaped(PROGRAM.summary.rstrip('.').lower())}", ".SH SYNOPSIS"]
    lines += [".B calicoctl", "[\\fIOPTION\\fR...] \\fICOMMAND\\fR ...", ".SH DESCRIPTION", _escaped(PROGRAM.text)]
    lines += [".SH OPTIONS", "Every command accepts these, too.", *_options(parser, set())]
    lines += [".SH COMMANDS"]
    for name, leaf in leaves(parser):
        text = COMMANDS[name]
        lines += [
            f'.SS "calicoctl {name}"',
            _escaped(f"{text.summary[0].upper()}{text.summary[1:]}. {text.text}".strip()),
        ]
        lines += [*_options(leaf, common), *examples(text)]
    lines += [".SH EXAMPLES", *examples(PROGRAM)]
    lines += [".SH FILES", ".TP", ".I /etc/calico/calicoctl.cfg", "Which datastore to use; see \\-\\-config."]
    return "\n".join(lines) + "\n"


def _options(parser: ArgumentParser, left_out: set[str]) -> Iterator[str]:
    for action in parser._actions:
        if action.help in (None, SUPPRESS) or not _heading(action):
            continue
        if action.option_strings and left_out.issuperset(action.option_strings):
            continue
        yield from (".TP", _heading(action), _escaped((action.help or "") % {}))


def _heading(action: Action) -> str:
    """Returns "" for the list of commands, which has a section of its own."""
    if action.nargs == "A...":
        return ""
    metavar = _escaped(str(action.metavar or action.dest.upper()))
    if not action.option_strings:
        return f"\\fI{metavar}\\fR"
    value = "" if action.nargs == 0 else f" \\fI{metavar}\\fR"
    return ", ".join(f"\\fB{_escaped(option)}\\fR{value}" for option in action.option_strings)


def _escaped(text: str) -> str:
    """Text that troff prints literally: hyphens that can be copied, and no line that it takes for a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return f"\\&{text}" if text[:1] in (".", "'") else text
