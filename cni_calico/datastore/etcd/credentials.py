"""The content of the TLS files for etcd, read each time a connection is made.

Rule: an error names the file that cannot be read, never its content.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.errors import DatastoreUnavailable
from cni_calico.model.access import CERTIFICATE_FILES
from cni_calico.regular import read_regular

Reach = Callable[[str], str]

# Where distributions keep the certificates that the system trusts (the list that Go uses).
_SYSTEM_CAS = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The present content of the TLS files; ``stamp`` changes when they do."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None
    stamp: tuple[tuple[int, int, int], ...] = ()


def as_it_is(path: str) -> str:
    """The path as this process sees it in its own root."""
    return path


def files_stamp(config: EtcdConfig, reach: Reach = as_it_is) -> tuple[tuple[int, int, int], ...]:
    """(inode, modification time, size) of every TLS file; zeros for one that is missing now."""
    stamps = []
    for path in filter(None, config.files):
        try:
            status = os.stat(reach(path))
            stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0, 0))
    return tuple(stamps)


def read_credentials(config: EtcdConfig, reach: Reach = as_it_is) -> Credentials:
    """Raises DatastoreUnavailable naming the file that cannot be read (never its content)."""
    stamp = files_stamp(config, reach)  # before reading: if something changes meanwhile it is read again
    contents = []
    for path in config.files:
        try:
            contents.append(read_regular(reach(path)) if path else None)
        except OSError as e:
            raise DatastoreUnavailable(
                f"cannot read the TLS file {path} of etcd: {e.strerror}",
                details=CERTIFICATE_FILES,
            ) from e
    ca, cert, key = contents
    return Credentials(ca or _system_cas(reach), cert, key, stamp)


def _system_cas(reach: Reach) -> bytes | None:
    for path in _SYSTEM_CAS:
        try:
            return read_regular(reach(path))
        except OSError:
            continue
    return None  # the library's default
