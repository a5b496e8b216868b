"""Which release is being made: one value for everything that a file of it says about itself.

Rule: no default; whoever makes a file is told the processor as well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edition:
    """``build``: the bundle's id; ``architecture``: Debian's name of the processor; ``epoch``: seconds since 1970."""

    version: str
    build: str
    architecture: str
    epoch: int
