"""``calico -t``: can the datastore of the configuration on stdin (or of the environment) be reached, and does it accept
requests?
"""

from __future__ import annotations

import os

from cni_calico.cni.answer import answer_error
from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore, parse_json
from cni_calico.cni.versions import CURRENT
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.plugin.call.ready import require_ready
from cni_calico.plugin.call.services import Services

TIMEOUT_S = 2.0


def run_datastore_test(stdin: bytes) -> int:
    """Status 0 if the datastore answered within TIMEOUT_S; else 1, with a CNI error on stdout and its text
    on stderr.
    """
    services = Services(os.environ)
    try:
        document = parse_json(stdin) if stdin.strip() else {}
        config = parse_datastore(JsonFields(document), os.environ)
        require_ready(services.datastore(config), Deadline.after(TIMEOUT_S))
    except CalicoError as e:
        os.write(2, f"{e.message}\n".encode())
        os.write(1, answer_error(e, CURRENT).stdout.encode())
        return 1
    finally:
        services.close()
    return 0
