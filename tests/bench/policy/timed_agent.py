"""The agent, with a clock around some of its functions: what starts.py runs for ``--phases``.

    timed_agent.py FILE TREE

Rule: nothing but the standard library is imported before the agent's own modules, which come from TREE. FILE gets, when
the agent ends, a list of [function, begun, ended, CPU of its thread], in ms since the process was started
(BENCH_BEGUN). A function that TREE does not have is left out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

# module, function or method
PHASES = (
    ("nodeagent.parts", "Parts.__init__"),
    ("nodeagent.felix", "Felix.__init__"),
    ("nodeagent.context.open", "open_context"),
    ("nodeagent.policing.enforce.filters", "look"),
    ("nodeagent.policing.enforce.ahead", "LookAhead.look"),
    ("nodeagent.policing.enforce.early", "EarlyGuard._look"),
    ("nodeagent.policing.enforce.early", "EarlyGuard.wait"),
    ("nodeagent.policing.feed.records", "RecordFeed.__init__"),
    ("nodeagent.view.sources", "Sources.__init__"),
    ("nodeagent.view.sources", "Sources.snapshot"),
    ("nodeagent.bgp.feed", "BgpFeed.__init__"),
    ("datastore.cache", "Cache._read_list"),
    ("datastore.etcd.cluster", "EtcdCluster.link"),
    ("datastore.etcd.watch", "EtcdWatch.__init__"),
    ("nodeagent.policing.feed.decoding", "RecordDecoder.decode"),
    ("nodeagent.dataplane.loop", "DataplaneLoop._pass"),
    ("nodeagent.dataplane.apply", "Applier.apply"),
    ("nodeagent.policing.engine", "PolicyEngine.use"),
    ("nodeagent.policing.loop", "PolicyLoop.__init__"),
    ("nodeagent.policing.loop", "PolicyLoop._take"),
    ("nodeagent.policing.rounds", "Rounds.receive"),
    ("nodeagent.policing.rounds", "Rounds.calculate"),
    ("policy.graph", "Graph.flush"),
    ("nodeagent.policing.tables.goal", "Goal.update"),
    ("nodeagent.policing.rounds", "Rounds._look"),
    ("nodeagent.policing.enforce.enforcer", "Enforcer.look"),
    ("nodeagent.policing.rounds", "Rounds._police"),
    ("nodeagent.policing.enforce.enforcer", "Enforcer.repair"),
    ("kernel.filter.nf_tables.filter", "NfTables.apply"),
    ("kernel.netlink.nfnetlink", "Nfnetlink.transact"),
    ("nodeagent.policing.report.status_files", "StatusFiles.keep"),
    ("nodeagent.policing.report.standing", "StandingReport.tell"),
    ("kernel.memory", "give_back_memory"),
)


def run_timed(tree: str, file: str) -> None:
    """Be the agent of that tree, with clocks; writes what they showed when it ends."""
    begun, told = float(os.environ["BENCH_BEGUN"]), []
    lock = threading.Lock()

    def tell(name: str, wall: float, cpu: float) -> None:
        now = time.monotonic()
        with lock:
            told.append((name, 1000 * (wall - begun), 1000 * (now - begun), 1000 * (time.thread_time() - cpu)))

    started = time.monotonic(), time.thread_time()
    tell("(interpreter)", begun, started[1] - time.thread_time())
    sys.path.insert(0, tree)
    if Path(tree, "packs").is_dir():  # as the executable does
        import_module("cni_calico.packed").use_pack(tree, "calico-node")
    main = import_module("cni_calico.nodeagent.main").main
    for first in ("felix", "parts"):  # what is imported before policies are read
        try:
            import_module(f"cni_calico.nodeagent.{first}")
            break
        except ModuleNotFoundError:
            continue
    tell("(imports)", *started)
    for module, path in PHASES:
        if f"cni_calico.{module}" in sys.modules:
            wrap(sys.modules[f"cni_calico.{module}"], path, tell)
    sys.argv = ["calico-node", "-felix"]
    try:
        main()
    finally:
        Path(file).write_text(json.dumps(told))


def wrap(module: Any, path: str, tell: Any) -> None:
    owner, _, name = path.rpartition(".")
    place = getattr(module, owner, None) if owner else module
    original = getattr(place, name, None) if place is not None else None
    if original is None:
        return

    def timed(*arguments: Any, **options: Any) -> Any:
        wall, cpu = time.monotonic(), time.thread_time()
        try:
            return original(*arguments, **options)
        finally:
            tell(path, wall, cpu)

    setattr(place, name, timed)
    if not owner:  # others have it by name
        for other in list(sys.modules.values()):
            if getattr(other, "__name__", "").startswith("cni_calico") and getattr(other, name, None) is original:
                setattr(other, name, timed)


if __name__ == "__main__":
    run_timed(sys.argv[2], sys.argv[1])
