"""PURE: which errors mean that this process, or this host, is short of memory, threads or file descriptors. Rule: a
shortage is nobody's mistake, and temporary: if nothing has been done yet, leave the work to another process; if
something has begun, answer "try again".
"""

from __future__ import annotations

from errno import EMFILE, ENFILE, ENOMEM

# the dynamic linker's messages when there is no memory for a shared object
_NOT_MAPPED = ("failed to map segment", "cannot allocate memory", "cannot create shared object descriptor")
# the interpreter's messages when there is no memory for the exception itself
_NO_EXCEPTION = ("error return without exception set", "without setting an exception")
_NOT_OPENED = "Too many open files"  # and its message when there is no descriptor for one
MEMORY = "memory"
DESCRIPTORS = "file descriptors"
_BY_ERRNO = {EMFILE: DESCRIPTORS, ENFILE: DESCRIPTORS, ENOMEM: MEMORY}


def shortage_of(error: BaseException | None) -> str:
    """What is missing: "memory", "threads", "file descriptors"; "" if the error is another one."""
    for _ in range(8):  # longer chains of causes are not ours
        if isinstance(error, MemoryError):
            return MEMORY
        if isinstance(error, ImportError) and any(text in str(error) for text in _NOT_MAPPED):
            return MEMORY
        if isinstance(error, ImportError) and _NOT_OPENED in str(error):
            return DESCRIPTORS
        if isinstance(error, SystemError) and any(text in str(error) for text in _NO_EXCEPTION):
            return MEMORY
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return "threads"
        if isinstance(error, RuntimeError) and "can't allocate lock" in str(error):
            return MEMORY
        if isinstance(error, OSError) and error.errno in _BY_ERRNO:
            return _BY_ERRNO[error.errno]
        if error is None:
            break
        error = error.__cause__
    return ""
