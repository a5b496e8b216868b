"""``calicoctl flows``: which of its forms is meant, as lines, as a page that goes on, or as a page in a file.

Rule: what does not fit the form is refused before anything is asked.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from cni_calico.ctl.flows.show import show
from cni_calico.ctl.output.values import TABLE
from cni_calico.errors import InvalidConfig


def flows(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises InvalidConfig, and as the forms do."""
    if arguments.web is None and not arguments.html:
        return show(arguments, environ)
    _require_fitting(arguments)
    if arguments.html:
        from cni_calico.ctl.flows.page.write import write

        return write(arguments, environ)
    from cni_calico.ctl.flows.page.serve import serve

    return serve(arguments, environ)


def _require_fitting(arguments: Namespace) -> None:
    form, others = ("--html", []) if arguments.html else ("--web", ["--aggregate", "--fail-if-denied"])
    given = {
        "--web": arguments.web is not None and form != "--web",
        "-o": arguments.output != TABLE,
        "-f": arguments.follow,
        "-v": arguments.verbose,
        "--aggregate": arguments.aggregate,
        "--fail-if-denied": arguments.fail_if_denied,
        "--expectations": bool(arguments.expectations),
    }
    why = {
        "--web": "give one of them",
        "-o": "a page is no document: leave one of them out",
        "-f": "a page goes on by itself" if form == "--web" else "a file does not go on: take --web for that",
        "-v": "each flow of a page has its command",
        "--aggregate": "it adds up what has ended: take --html for that",
        "--fail-if-denied": "a page has no exit status: take --html for that",
        "--expectations": "a page is another file: give one of them",
    }
    for option in ("--web", "-o", "-f", "-v", "--expectations", *others):
        if given[option]:
            raise InvalidConfig(f"{form} and {option} do not go together: {why[option]}")
