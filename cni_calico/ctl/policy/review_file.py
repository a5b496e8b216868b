"""Writes the page of ``calicoctl policy diff --html`` and ``replay --html``.

Rule: the file is its owner's alone, and replaces nothing but another such page.
"""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime

from cni_calico.ctl.output.files import require_own_page, write_file
from cni_calico.ctl.output.values import TABLE
from cni_calico.ctl.policy.review import MARK, Review, render_review
from cni_calico.errors import InvalidConfig


def require_fitting_page(arguments: Namespace) -> None:
    """Before anything is read. Raises InvalidConfig, and CalicoError if something else is there."""
    if arguments.html and arguments.output != TABLE:
        raise InvalidConfig("--html and -o do not go together: a page is no document: leave one of them out")
    if arguments.html:
        require_own_page(arguments.html, MARK, "calicoctl policy")


def write_review(arguments: Namespace, review: Review) -> str:
    """Returns what is printed. Raises CalicoError."""
    write_file(arguments.html, render_review(review, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"))
    return f"{review.summary}\nWrote {arguments.html}: open it in a browser.\n"
