"""Opens channels to collectors: mutual TLS to the cluster's, or the socket of whoever looks on this node.

Rule: without all three files of TLS nothing is sent, unless none is named; a file is read anew for each channel, so
that a renewed certificate is used with the next one. The server's name must be in its certificate.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from cni_calico.datastore.tls import client_context
from cni_calico.flows.export.client import NotExported
from cni_calico.flows.export.wanted import Target
from cni_calico.regular import read_regular

_MOST_BYTES = 1 << 20
_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel must not inherit another one's back-off
)


def is_plain(target: Target) -> bool:
    """Whether nothing of TLS is set."""
    return not (target.authority or target.certificate or target.key)


def open_server(grpc: Any, target: Target) -> Any:
    """Raises NotExported."""
    if is_plain(target):
        return grpc.insecure_channel(target.server, _OPTIONS)
    named = {
        "TyphaCAFile": target.authority,
        "TyphaCertFile": target.certificate,
        "TyphaKeyFile": target.key,
    }
    missing = [name for name, path in named.items() if not path]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise NotExported(
            f"flows are not exported: {' and '.join(missing)} {verb} not set; set all three, or none for no TLS"
        )
    authority, certificate, key = (_read(path) for path in named.values())
    try:
        client_context(authority, certificate, key)
    except (OSError, ValueError) as e:
        raise NotExported(
            f"flows are not exported: {target.authority}, {target.certificate} and {target.key} are not what TLS "
            f"needs, or do not belong together: {e}"
        ) from e
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(target.server, credentials, _OPTIONS)


def _read(path: str) -> bytes:
    try:
        return read_regular(path, _MOST_BYTES)
    except OSError as e:
        raise NotExported(f"flows are not exported: cannot read {path}: {e.strerror}") from e


def is_socket(path: str) -> bool:
    """Whether somebody with our own rights may listen there."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def open_local(grpc: Any, path: str) -> Any:
    """Raises NotExported."""
    if not is_socket(path):
        raise NotExported(f"flows are not shown: {path} is not a socket of this user")
    return grpc.insecure_channel(f"unix:{path}", _OPTIONS)
