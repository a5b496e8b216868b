"""Gives memory of this process that is no longer used back to the kernel.

Rule: call it after a large piece of work, not often: it walks through all objects.
"""

from __future__ import annotations

import ctypes
import gc
import os


def give_back_memory() -> None:
    """Collect garbage and return free memory to the kernel; later garbage collections skip the objects that are alive
    now.
    """
    gc.collect()
    gc.freeze()
    trim_memory()


def trim_memory() -> None:
    """Return only what the C library keeps; for the end of a burst of work that leaves nothing alive."""
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
