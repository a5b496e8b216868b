"""Gives memory of this process that is no longer used back to the kernel.

Rule: call it at the end of a large piece of work, not after every one: it walks through everything there is.
"""

from __future__ import annotations

import ctypes
import gc
import os


def give_back_memory() -> None:
    """Also treat what is alive now as permanent, so that later garbage collections do not look through it."""
    gc.collect()
    gc.freeze()
    trim_memory()


def trim_memory() -> None:
    """Give back only what the C library keeps: after a burst of which nothing is alive any more."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # a C library without this function


def resident_bytes() -> int:
    """The memory that this process uses, 0 if the kernel does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
