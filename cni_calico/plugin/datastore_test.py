"""``calico -t``: can the datastore of the configuration on stdin (or of the environment) be reached?"""

from __future__ import annotations

import os

from cni_calico.cni.fields import Fields
from cni_calico.cni.netconf import parse_datastore, parse_json
from cni_calico.datastore.connect import open_datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.keys import ResourceKey

TIMEOUT_S = 2.0


def run_datastore_test(stdin: bytes) -> int:
    """0 when the datastore answered within TIMEOUT_S, 1 with a line on stderr otherwise."""
    try:
        document = parse_json(stdin) if stdin.strip() else {}
        store = open_datastore(parse_datastore(Fields(document), os.environ))
        try:
            store.get(ResourceKey("ClusterInformation", "default"), Deadline.after(TIMEOUT_S))
        finally:
            store.close()
    except CalicoError as e:
        os.write(2, f"{e.message}\n".encode())
        return 1
    return 0
