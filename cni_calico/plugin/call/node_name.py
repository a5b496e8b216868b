"""The name under which Calico knows this node.

Rule: nodename > contents of nodename_file > hostname > the OS host name; trimmed; only the OS host name is lower-cased.
For calico the file must exist unless nodename_file_optional is set; at node boot ADD waits a little for it. If the
configuration has a nodename and names no nodename_file, no file is needed, because such a host may have no agent to
write it. calico-ipam by itself, as the IPAM plugin of macvlan or bridge, works on a node that is not set up: it never
waits for the file.
"""

from __future__ import annotations

import os
import time

from cni_calico.cni.netconf import NetConf, require_node_name
from cni_calico.deadline import Deadline
from cni_calico.errors import NodeNotSetUp
from cni_calico.kernel.files import Files

BOOT_WAIT_S = 5.0
_POLL_S = 0.05


def read_nodename(
    conf: NetConf, files: Files, deadline: Deadline, *, wait_s: float = 0.0, for_ipam: bool = False
) -> str:
    """The node name; ``for_ipam``: as calico-ipam by itself determines it.

    Raises NodeNotSetUp if it cannot be known (with the text that users look for), InvalidConfig for a name that no node
    can have.
    """
    if conf.nodename and (for_ipam or not conf.raw.get("nodename_file")):
        return conf.nodename
    optional = for_ipam or conf.nodename_file_optional
    written = _read_file(conf.nodename_file, files, deadline.sooner(wait_s), optional=optional)
    if conf.nodename:
        return conf.nodename
    if written:
        require_node_name(written, f"the contents of {conf.nodename_file}")
        return written
    return conf.hostname or os_host_name()


def os_host_name() -> str:
    """The host's own name, as upstream spells it."""
    return os.uname().nodename.strip().lower()


def _read_file(path: str, files: Files, limit: Deadline, *, optional: bool) -> str:
    """The contents of the file; "" if it is optional and absent."""
    while True:
        try:
            return files.read_text(path).strip()
        except OSError as e:
            if optional:
                return ""
            if limit.expired():
                raise _missing(path, (e.strerror or str(e)).lower()) from e
        except UnicodeDecodeError as e:
            raise _missing(path, "it is not text") from e
        time.sleep(_POLL_S)


def _missing(path: str, why: str) -> NodeNotSetUp:
    return NodeNotSetUp(
        f"stat {path}: {why}: check that the calico/node container is running and has mounted /var/lib/calico/",
        details="calico-node writes the file once its start-up succeeded; or set nodename in the configuration, or "
        "nodename_file_optional",
    )
