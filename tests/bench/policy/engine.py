"""The policy engine alone in a process, for changes.py: ETCD, NODE and STATUS in its environment."""

from __future__ import annotations

import os
import signal
import threading

from cni_calico.datastore.connect import open_datastore
from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.policing.engine import PolicyEngine
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from tests.unrecorded import UNRECORDED


def main() -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    store = open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(os.environ["ETCD"],)))
    settings = parse_settings({"CALICO_RUN_DIR": os.environ["STATUS"], "CALICO_STATE_DIR": os.environ["STATUS"]})
    context = Context(settings, store, Log("warning"), lambda _: True)
    engine = PolicyEngine(context, os.environ["NODE"])
    environ = {"FELIX_ENDPOINTSTATUSPATHPREFIX": os.environ["STATUS"], "FELIX_IPV6SUPPORT": "false", **UNRECORDED}
    engine.use(parse_felix(environ).settings, Tunnels())
    engine.run(stopping)


if __name__ == "__main__":
    main()
