"""Large pages for the memory of a process that forks often.

Rule: only how fast a fork is depends on it; a kernel that has no large pages, or none left, is left as it is.

A worker that has collected all tests has 270 MB in 67 thousand pages. Every fork copies their table, and each page that
either side writes to afterwards is a fault: 22 ms of a processor, 8 in pages of 2 MB. The kernel splits a large page
that is written to between a fork and the child's end; most of this memory never is.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

LARGE = 2 << 20
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25


def use_large_pages() -> None:
    """For everything that this process has allocated so far (madvise MADV_COLLAPSE, Linux 6.1 or newer)."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, _, *name = line.split(maxsplit=5)
        first, end = (int(text, 16) for text in place.split("-"))
        first, end = -(-first // LARGE) * LARGE, end // LARGE * LARGE
        if rights.startswith("rw") and name in ([], ["[heap]"]) and first < end:
            for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):
                advise(first, end - first, advice)
