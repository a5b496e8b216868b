"""Reads the files that a user names.

Rule: each has a size limit; an error says which file it is and what is wrong with it.
"""

from __future__ import annotations

from cni_calico.bounded import CONFIG_BYTES, read_text
from cni_calico.errors import InvalidConfig


def read_file(path: str, *, what: str = "", limit: int = CONFIG_BYTES) -> str:
    """The text of a file; ``what`` says what it is for. Raises InvalidConfig."""
    try:
        return read_text(path, limit=limit)
    except (OSError, ValueError) as e:
        cause = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise InvalidConfig(f"cannot read {f'{what} ' if what else ''}{path}: {cause}") from e
