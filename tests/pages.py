"""PURE: the commands of a page in docs/, as a reader finds them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT

FROM_CALICO = ROOT / "docs" / "from-calico.md"


def blocks(page: Path, heading: str) -> list[str]:
    """The commands below a heading."""
    section = re.split(r"(?m)^## ", page.read_text().partition(f"\n## {heading}")[2])[0]
    found = re.findall(r"(?s)```sh\n(.*?)```", section)
    assert found
    return found
