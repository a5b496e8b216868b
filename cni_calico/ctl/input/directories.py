"""The files of resources that a user names, each by itself or with its directory.

Rule: what cannot be looked at is an error, as if it had been named, and never as if it were not there. A file counts
once, whatever links lead to it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NoReturn

from cni_calico.errors import InvalidConfig

SUFFIXES = (".yaml", ".yml", ".json")
_FileNumber = tuple[int, int]


def find_files(name: str, *, recursive: bool) -> list[str]:
    """The file, or the files of a directory, sorted; ``recursive``: also below it. Raises InvalidConfig."""
    status = _status(name)
    if not stat.S_ISDIR(status.st_mode):
        return [name]
    found: dict[_FileNumber, str] = {}
    for path in sorted(_files_below(name, {_number_of(status)}, recursive=recursive), key=lambda one: one.split("/")):
        found.setdefault(_number_of(_status(path)), path)
    return list(found.values())


def _files_below(top: str, seen: set[_FileNumber], *, recursive: bool) -> Iterator[str]:
    """``seen``: directories, each of which is gone into once."""
    for here, directories, names in os.walk(top, onerror=_refuse, followlinks=True):
        yield from (os.path.join(here, one) for one in names if os.path.splitext(one)[1] in SUFFIXES)
        below = sorted(directories) if recursive else []
        new = {_number_of(_status(os.path.join(here, one))): one for one in reversed(below)}
        directories[:] = [one for number, one in new.items() if number not in seen]
        seen |= new.keys()


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as e:
        _refuse(e)


def _number_of(status: os.stat_result) -> _FileNumber:
    return status.st_dev, status.st_ino


def _refuse(error: OSError) -> NoReturn:
    raise InvalidConfig(f"cannot read {error.filename}: {error.strerror}") from error
