"""One janitor in a process of its own, hastier than any real one, and told to stop by its pid only.

janitor_driver.py NODE     the datastore and Kubernetes come from the environment, as calico-node's do;
                           JANITOR_KEPT_S: how long it waits for those who keep addresses
"""

from __future__ import annotations

import os
import sys
import threading

from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.janitor.options import JanitorOptions
from cni_calico.controllers.janitor.run import Janitor, make_election
from cni_calico.datastore.election import Terms
from cni_calico.ipam.lost import suspects
from cni_calico.nodeagent.context.open import open_context

HASTE = JanitorOptions(
    Terms(lasts_s=3.0, renew_s=0.5, look_s=0.5),
    2.0,
    per_second=50.0,
    look_s=0.2,
    settings_s=30.0,
    again_s=1.0,
    calls_s=2.0,
)


def main() -> None:
    suspects.KEPT_S = float(os.environ.get("JANITOR_KEPT_S", suspects.KEPT_S))
    stopping = threading.Event()
    context = open_context(os.environ, "janitor", stopping.wait).context
    counters = JanitorCounters()
    cluster = Cluster(context.store, context.log, context.kubernetes_store, context.is_kubernetes_datastore)
    janitor = Janitor(cluster, make_election(cluster, sys.argv[1], HASTE.terms), counters, HASTE)
    threading.Thread(target=janitor.run, args=(stopping,), daemon=True).start()
    said = False
    while os.getppid() > 1 and not stopping.wait(0.02):  # the test that started it is gone
        if counters.is_leader != said:
            said = counters.is_leader
            print("leader" if said else "stands by", flush=True)


if __name__ == "__main__":
    main()
