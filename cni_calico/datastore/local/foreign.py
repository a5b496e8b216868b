"""Reads rows of another program's SQLite file, which that program may be writing.

Rule: the file is opened for reading only and closed at once; a lock is waited for only as long as the caller says, and
what goes wrong is one of our errors that names the file. Never for the embedded store's own file (see file.py).
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from cni_calico.datastore.local.file import translated
from cni_calico.errors import DatastoreDamaged
from cni_calico.regular import open_regular


def read_foreign_rows(path: str, query: str, parameters: tuple[str, ...], patience_s: float) -> list[tuple[Any, ...]]:
    """Raises FileNotFoundError, OSError, DatastoreError (locked, damaged)."""
    os.close(open_regular(path))  # SQLite would say "unable to open" of whatever is the matter
    try:
        connection = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", timeout=patience_s, uri=True)
        try:
            return connection.execute(query, parameters).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as e:
        raise translated(e, f"read {path}") from e
    except UnicodeDecodeError as e:
        raise DatastoreDamaged(f"cannot read {path}: a name in its schema is not UTF-8") from e


def _quoted(path: str) -> str:
    """A path as part of a URI."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
