"""The policy engine of a lab (lab.py) as a program of its own: ``python -m tests.netns.policing.engine_alone JSON``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cni_calico.nodeagent.policing.feed import starting
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import context_of, run_engine

if __name__ == "__main__":
    host, root, environ, limit_s, (starting.START_BYTES, starting.START_SELECTORS) = json.loads(sys.argv[1])
    run_engine(Namespace(host), Path(root), environ, context_of(Path(root)), Tunnels(), limit_s)
