"""``calicoctl flows --html FILE``: the page with the flows inside, which needs nothing else.

Rule: the file is its owner's alone, and replaces nothing but another such page.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cni_calico.ctl.command_line.flow_arguments import FIELDS_OF_OPTIONS, page_words
from cni_calico.ctl.flows.page.document import MARK, render_page
from cni_calico.ctl.flows.page.script.whole import MOST
from cni_calico.ctl.flows.places import open_place
from cni_calico.ctl.flows.show import (
    DENIED_STATUS,
    describe_incomplete,
    describe_losses,
    explain_command,
    parse_query_arguments,
)
from cni_calico.ctl.output.files import require_own_page, write_file
from cni_calico.ctl.session import CommandFailed
from cni_calico.flows.query import DENIED


def write(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises RecorderSilent, QueryFailed, CalicoError if the file cannot be written, CommandFailed for
    --fail-if-denied.
    """
    now = datetime.now(UTC)
    query = parse_query_arguments(arguments, now)
    most = MOST if arguments.last is None else min(arguments.last, MOST)
    query = query if query.aggregate else replace(query, last=most + (arguments.last is None or arguments.last > MOST))
    require_own_page(arguments.html, MARK, "calicoctl flows")
    flows, said = list[dict[str, Any]](), list[str]()
    for document in open_place(arguments, environ).ask(query, arguments.timeout):
        if document.get("end"):
            said += (*describe_losses(document["lost"]), *describe_incomplete(document))
        elif "lost" in document:
            said.append(f"{document['lost']} flows are missing here: {document.get('why')}")
        else:
            flows.append({**document, "explain": explain_command(document)})
    # aggregates come with the most connections first, flows with the oldest
    shown = flows[:most] if query.aggregate else flows[: -most - 1 : -1]
    more = len(flows) > most
    data: dict[str, Any] = {"live": False, "filter": page_words(arguments), "made": now.isoformat(timespec="seconds")}
    data |= {"options": FIELDS_OF_OPTIONS, "flows": shown, "said": said, "more": more}
    write_file(arguments.html, render_page(data))
    kept = f"Wrote {arguments.html} with {len(shown)} flows{' of more' if more else ''}: open it in a browser.\n"
    denied = sum(one["verdict"] == DENIED for one in shown)
    if arguments.fail_if_denied and denied:
        raise CommandFailed(f"{denied} flows were denied", output=kept, status=DENIED_STATUS)
    return kept
