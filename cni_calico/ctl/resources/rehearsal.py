"""``--dry-run`` and ``calicoctl diff``: what would be done, without doing it.

Rule: with ``server`` the command itself runs, on a store that keeps all writes in memory; with ``client`` there is no
datastore at all.
"""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace

from cni_calico.ctl.input.targets import parse_target, parse_targets
from cni_calico.ctl.output.render import exported
from cni_calico.ctl.output.texts import render_yaml
from cni_calico.ctl.resources import commands, operations
from cni_calico.ctl.session import CommandFailed, Session, shown_key
from cni_calico.datastore.interface import Versioned
from cni_calico.datastore.rehearsed import RehearsedStore
from cni_calico.errors import InvalidConfig

CHECKED = "Nothing was changed: --dry-run=client, no datastore was used.\n"


def rehearse(session: Session) -> Session:
    """The session on a store to which nothing is written."""
    return replace(session, store=RehearsedStore(session.store))


def check(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Check what can be known without a datastore. Raises InvalidConfig, CommandFailed."""
    if arguments.filename:
        if arguments.command == "delete":
            commands.read_manifest(arguments)
            return CHECKED
        return commands.validate(arguments, environ) + CHECKED
    if arguments.command == "delete":
        if not parse_targets(arguments.words)[1]:
            raise InvalidConfig("cannot delete resources: name a kind and at least one resource, or a file with -f")
    elif arguments.command == "label":
        parse_target(arguments.words[:-1], "label")
    else:
        parse_target(arguments.words, "patch")
        commands.parse_patch(arguments.patch, arguments.type)
    return CHECKED


def diff(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed with the differences; "" if ``apply`` would change nothing."""
    rehearsed = rehearse(session)
    text = ""
    for key, document in commands.read_manifest(arguments):
        commands.require_placed(key, document, arguments)
        before = session.store.get(key, session.deadline) if operations.is_storable(key) else None
        operations.apply(rehearsed, key, document, commands.checks_of(arguments))
        after = rehearsed.store.get(key, session.deadline)
        name = shown_key(key)
        lines = difflib.unified_diff(_lines(before), _lines(after), f"stored {name}", f"applied {name}", n=3)
        text += "".join(lines)
    if text:
        raise CommandFailed("", output=text)
    return ""


def _lines(found: Versioned | None) -> list[str]:
    if found is None:
        return []
    return render_yaml(exported(operations.shown_document(found))).splitlines(keepends=True)
