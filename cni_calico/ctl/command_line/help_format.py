"""The layout of help: as wide as the terminal, texts as they are written.

Rule: importing this costs nothing, because argparse makes a formatter for every argument, and its own way to learn the
terminal's width imports modules that no command needs.
"""

from __future__ import annotations

import os
from argparse import RawDescriptionHelpFormatter

_WIDTH, _LEAST = 80, 40


class HelpFormat(RawDescriptionHelpFormatter):
    width = 0

    def __init__(self, prog: str) -> None:
        if not HelpFormat.width:
            HelpFormat.width = _columns()
        super().__init__(prog, width=HelpFormat.width - 2)


def _columns() -> int:
    text = os.environ.get("COLUMNS", "")
    if text.isascii() and text.isdecimal() and int(text):
        return max(_LEAST, int(text))
    try:
        return max(_LEAST, os.get_terminal_size(1).columns)
    except OSError:
        return _WIDTH
