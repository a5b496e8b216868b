"""The files of a rehearsal: what is written stays in memory, and is read from there.

Rule: what was there is read from where it is; nothing is written. ``written`` has what would be in each file, None for
one that would be gone.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOENT

from cni_calico.kernel.files import Files


class RehearsedFiles(Files):
    """For one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, bytes | None] = {}

    def read_bytes(self, path: str) -> bytes:
        if path not in self.written:
            return super().read_bytes(path)
        data = self.written[path]
        if data is None:
            raise FileNotFoundError(ENOENT, "it would be gone", path)
        return data

    def exists(self, path: str) -> bool:
        return self.written[path] is not None if path in self.written else super().exists(path)

    def make_directory(self, directory: str, mode: int = 0o700) -> None:
        """Nothing: a file that would be written says that there would be one."""

    def write_atomic(
        self,
        path: str,
        data: bytes,
        mode: int = 0o600,
        *,
        durable: bool = True,
        prepare: Callable[[int], object] | None = None,
    ) -> None:
        self.written[path] = data

    def append(self, path: str, data: bytes, mode: int = 0o600) -> int:
        there = self.read_bytes(path) if self.exists(path) else b""
        self.written[path] = there + data
        return len(there) + len(data)

    def remove(self, path: str) -> None:
        if self.exists(path):
            self.written[path] = None

    def changed(self) -> list[str]:
        """The files that would be other than they are."""
        stored = Files()
        return sorted(
            path
            for path, data in self.written.items()
            if (stored.exists(path) if data is None else not stored.holds(path, data))
        )
