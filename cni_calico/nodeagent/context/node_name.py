"""The name under which calico-node knows its node."""

from __future__ import annotations

import os

from cni_calico.errors import InvalidConfig
from cni_calico.kernel.files import Files
from cni_calico.nodeagent.context.settings import NodeSettings


def read_node_name(settings: NodeSettings, files: Files) -> str:
    """The node's name. Raises InvalidConfig if it could not be part of a datastore key."""
    name = settings.nodename or _stored(settings.nodename_file, files)
    name = name or settings.hostname.lower() or os.uname().nodename.strip().lower()
    if not name or "/" in name or any(c.isspace() or not c.isprintable() for c in name):
        raise InvalidConfig(
            f"cannot use the node name {name!r}: it is empty, or contains a slash or blanks",
            details=f"set NODENAME, or correct {settings.nodename_file}",
        )
    return name


def _stored(path: str, files: Files) -> str:
    try:
        return files.read_text(path).strip()
    except (OSError, UnicodeDecodeError):
        return ""
