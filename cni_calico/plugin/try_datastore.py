"""``calico -t``: can the datastore of the configuration on stdin (or of the environment) be reached, and does it accept
requests?
"""

from __future__ import annotations

import os

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore, parse_json
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.plugin.call.ready import require_ready
from cni_calico.plugin.call.services import Services

TIMEOUT_S = 2.0


def try_datastore(stdin: bytes) -> CalicoError | None:
    """None if the datastore answered within TIMEOUT_S, else what is wrong."""
    services = Services(os.environ)
    try:
        document = parse_json(stdin) if stdin.strip() else {}
        config = parse_datastore(JsonFields(document), os.environ)
        require_ready(services.datastore(config), Deadline.after(TIMEOUT_S))
    except CalicoError as e:
        return e
    finally:
        services.close()
    return None
