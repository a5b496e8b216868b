"""PURE: long calculations in steps, so that their caller can do something else between two of them.

Rule: a calculation in steps gives the same result however long the pauses are, or says what may change meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

StepsResult = TypeVar("StepsResult")
Steps = Generator[None, None, StepsResult]


def finish(steps: Steps[StepsResult]) -> StepsResult:
    """Take all steps that are left."""
    while True:
        try:
            next(steps)
        except StopIteration as e:
            result: StepsResult = e.value
            return result
