"""Memory of this process that nothing uses any more, given back to the kernel.

Rule: for the end of a large piece of work, not for every one: it walks through everything there is.
"""

from __future__ import annotations

import ctypes
import gc
import os


def give_back_memory() -> None:
    """What is alive now is taken for lasting, and not looked through by later collections."""
    gc.collect()
    gc.freeze()
    trim_memory()


def trim_memory() -> None:
    """Only what the C library keeps: after a burst, of which nothing is alive any more."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # a C library without it


def resident_bytes() -> int:
    """What this process holds in memory, 0 when the kernel does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
