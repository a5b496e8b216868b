"""``calicoctl completion``: the script that completes command lines in a shell, made from the parser by shtab.

Rule: the script makes no requests while it completes: it contains commands, options and kinds.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.command_line.arguments import build_parser, leaves
from cni_calico.model.keys import PLURALS

_FILES = (
    "config",
    "kubeconfig",
    "filename",
    "file",
    "html",
    "archive",
    "report",
    "from_report",
    "overlay",
    "kernel_config",
)


def show(arguments: Namespace, environ: Mapping[str, str]) -> str:
    del environ
    return render_completion(arguments.shell)


def render_completion(shell: str) -> str:
    """The script for bash, zsh or fish."""
    import shtab

    parser = build_parser()
    # a line each: fish takes a line for one candidate
    kinds = shtab.cmd("printf '%s\\n' " + " ".join(sorted({name.lower() for kind in PLURALS.items() for name in kind})))
    for command in (parser, *(leaf for _, leaf in leaves(parser))):
        _say_what_completes(command, {"words": kinds, "log_dir": shtab.DIRECTORY, **dict.fromkeys(_FILES, shtab.FILE)})
    return str(shtab.complete(parser, shell=shell)).rstrip() + "\n"


def _say_what_completes(command: ArgumentParser, known: Mapping[str, Any]) -> None:
    for action in command._actions:
        if action.dest in known:
            vars(action)["complete"] = known[action.dest]  # shtab's interface for this
