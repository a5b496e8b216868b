"""What a refusal of the operating system means to whoever wanted something done.

Rule: the error reads ``cannot <what was wanted>: <cause>``, as errors.py has it, and keeps the system's number where
its kind has one. What a CNI call imports does without this module, because each costs it time.
"""

from __future__ import annotations

from cni_calico.errors import CalicoError, KernelError


class Doing:
    """``with Doing("write FILE"):`` an OSError of the body becomes ``cannot write FILE: <cause>``, of that kind."""

    __slots__ = ("_kind", "_what")

    def __init__(self, what: str, kind: type[CalicoError] = KernelError) -> None:
        self._what, self._kind = what, kind

    def __enter__(self) -> None: ...

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            found = self._kind(f"cannot {self._what}: {error.strerror or error}")
            if isinstance(found, KernelError):
                found.errno = error.errno or 0
            raise found from error
