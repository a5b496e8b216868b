"""Memory of this process that nothing uses any more, given back to the kernel.

Rule: for the end of a large piece of work, not for every one: it walks through everything there is.
"""

from __future__ import annotations

import ctypes
import gc


def give_back_memory() -> None:
    """What is alive now is taken for lasting, and not looked through by later collections."""
    gc.collect()
    gc.freeze()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # a C library without it
