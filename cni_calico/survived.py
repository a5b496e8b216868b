"""Errors that a thread survives.

Rule: a thread that goes on after any error tells ``threading.excepthook`` of a lack of memory, as if it had ended by
it. Whoever has to end a process that was refused memory watches that hook; in any other process nothing happens.
"""

from __future__ import annotations

import threading

from cni_calico.shortage import MEMORY, shortage_of


def tell_survived(error: BaseException) -> None:
    """``error`` was caught, and the calling thread goes on."""
    if threading.excepthook is not threading.__excepthook__ and shortage_of(error) == MEMORY:
        ended = threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
        threading.excepthook(ended)
