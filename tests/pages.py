"""PURE: the commands of a page in docs/, as a reader finds them."""

from __future__ import annotations

import re

from tests.conftest import ROOT


def blocks(page: str, heading: str) -> list[str]:
    """The shell blocks below a heading."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"(?ms)^ *```sh\n(.*?)^ *```", text)
    assert found, (page, heading)
    return found
