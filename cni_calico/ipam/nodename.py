"""The name under which this node is known to Calico.

Rule: nodename > contents of nodename_file > hostname > the OS host name; trimmed; only the OS host name is lower-cased.
The file must exist unless nodename_file_optional; at node boot ADD waits a little for it.
"""

from __future__ import annotations

import os
import time

from cni_calico.cni.netconf import NetConf
from cni_calico.deadline import Deadline
from cni_calico.errors import NodeNotSetUp
from cni_calico.kernel.files import Files

BOOT_WAIT_S = 5.0
_POLL_S = 0.05


def read_nodename(conf: NetConf, files: Files, deadline: Deadline, *, wait_s: float = 0.0) -> str:
    """The node name. Raises NodeNotSetUp when it cannot be known (the text is the one users look for)."""
    if conf.nodename:
        return conf.nodename
    limit = deadline.sooner(wait_s)
    while True:
        try:
            name = files.read_text(conf.nodename_file).strip()
        except OSError as e:
            if conf.nodename_file_optional:
                break
            if limit.expired():
                raise NodeNotSetUp(
                    f"stat {conf.nodename_file}: {(e.strerror or str(e)).lower()}: check that the calico/node "
                    "container is running and has mounted /var/lib/calico/",
                    details="calico-node writes the file once its start-up succeeded; or set nodename in the "
                    "configuration, or nodename_file_optional",
                ) from e
            time.sleep(_POLL_S)
            continue
        if name:
            return name
        break
    return conf.hostname or os.uname().nodename.strip().lower()
