"""How fast something grows, and how far that number can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = 12


def slope_with_noise(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """By how much the values grow in one unit of time (least squares), and twice the standard error of that.

    Neighbouring samples are not independent, which would make the error look smaller than it is: what is fitted are
    the means of twelve stretches of time. Needs three samples that differ in time.
    """
    count = min(BLOCKS, len(times))
    first, length = times[0], times[-1] - times[0]
    stretches: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    for time, value in zip(times, values, strict=True):
        stretches[min(count - 1, int(count * (time - first) / length))].append((time, value))
    points = [tuple(sum(axis) / len(part) for axis in zip(*part, strict=True)) for part in stretches if part]
    mean_time, mean_value = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((time - mean_time) ** 2 for time, _ in points)
    slope = sum((time - mean_time) * (value - mean_value) for time, value in points) / spread
    left = sum((value - mean_value - slope * (time - mean_time)) ** 2 for time, value in points)
    return slope, 2 * math.sqrt(left / max(1, len(points) - 2) / spread)
