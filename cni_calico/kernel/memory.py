"""Gives memory of this process that is no longer used back to the kernel, and keeps garbage collections short.

Rule: ``give_back_memory`` after a large piece of work, not often: it walks through all objects.
"""

from __future__ import annotations

import ctypes
import gc
import os

_USUAL = gc.get_threshold()
_SELDOM = 200_000  # new objects
_M_ARENA_MAX, _ARENAS = -8, 2


def share_arenas() -> None:
    """Have all threads take the C library's memory from two arenas, instead of eight for each processor, of which each
    keeps what its threads once needed at the same time. Before threads are started: who has an arena keeps it.
    """
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    except (OSError, AttributeError):
        pass  # a C library without this function


def give_back_memory() -> None:
    """Collect garbage and return free memory to the kernel; later garbage collections skip the objects that are alive
    now.
    """
    gc.collect()
    gc.freeze()
    trim_memory()


def expect_growth() -> None:
    """Have garbage collections come seldom: much is about to be read, nearly all of which stays. Until
    ``collect_as_usual``; garbage that is a circle takes some 20 MB more until then.
    """
    gc.set_threshold(_SELDOM, *_USUAL[1:])


def collect_as_usual() -> None:
    """What was expected to grow has."""
    gc.set_threshold(*_USUAL)


def spare_collections() -> None:
    """Let later garbage collections skip what is alive now, during a large piece of work: with millions of objects
    each would hold up all threads for seconds. It looks only at the newest objects. What nothing refers to is freed as
    ever; older objects that only refer to each other are not, until ``collect_all`` or ``end_sparing``.
    """
    gc.collect(1)
    gc.freeze()


def end_sparing() -> None:
    """Garbage collections look at all objects again."""
    gc.unfreeze()


def collect_all() -> None:
    """Collect all garbage now, also what collections skip, and return free memory to the kernel."""
    gc.unfreeze()
    gc.collect()
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
