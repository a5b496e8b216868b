"""Imports modules from one file of the bundle instead of a file each: one system call for a module, and no search.

Rule: it is only faster. The file has the code of the .pyc files beside it, which stay (build/pack.py). A module that
it lacks, and every one where there is no such file, is imported as usual.
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

_LENGTH = 8


class PackedModules:
    """Finds and runs the modules of an open pack, whose code begins at ``start``. ``directory``: of the .pyc files."""

    def __init__(self, directory: str, fd: int, start: int, index: Mapping[str, tuple[int, int, bool]]) -> None:
        self._directory, self._fd, self._start, self._index = directory, fd, start, index

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = self._index.get(name)
        if found is None:
            return None
        loader: Any = self  # it need not be one of importlib.abc, whose import takes longer than what this saves
        place, is_package = f"{self._directory}/{name.replace('.', '/')}", found[2]
        origin = f"{place}/__init__.pyc" if is_package else f"{place}.pyc"
        spec = ModuleSpec(name, loader, origin=origin, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [place]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        """Raises ImportError if the file cannot be read."""
        offset, length, _ = self._index[module.__name__]
        try:
            code = marshal.loads(os.pread(self._fd, length, self._start + offset))  # noqa: S302 (of the bundle, as all code is)
        except (OSError, EOFError, ValueError, TypeError) as e:
            raise ImportError(f"cannot import {module.__name__}: its pack is damaged: {e}", name=module.__name__) from e
        exec(code, module.__dict__)  # noqa: S102 (as every import does)


def use_pack(directory: str, name: str) -> None:
    """Import from the pack of that name from now on, if there is one. It stays open: nothing is removed that a process
    imports from, but an upgrade may remove its name.
    """
    try:
        fd = os.open(f"{directory}/packs/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    length = int.from_bytes(os.pread(fd, _LENGTH, 0), "little")
    try:
        index = marshal.loads(os.pread(fd, length, _LENGTH))  # noqa: S302 (of the bundle, as all code is)
    except (OSError, EOFError, ValueError, TypeError):
        os.close(fd)
        return
    sys.meta_path.insert(0, PackedModules(directory, fd, _LENGTH + length, index))
