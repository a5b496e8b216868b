"""One run: hosts, workers, what goes wrong around them, and the judgement.

Rule: the judge knows the calls' answers, what ``ip`` shows and the raw records, and nothing of the product.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import signal
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deadlines import until
from tests.e2e.host import Reply
from tests.e2e.kubernetes.node import KubeNode
from tests.faults.acts import Acts
from tests.faults.calls import begin, load_modules, lonely_group
from tests.faults.crew import ASKS_WHERE, Crew
from tests.faults.history import Verdict, judge, read_history
from tests.faults.places import GRACE_S, PODS, Host, Lab, lab
from tests.faults.power import PowerCuts
from tests.faults.records import Stored
from tests.faults.servers import Controllers, Server, traces_in
from tests.faults.worker import LONGEST_S, PATIENCE_S, Options, Slot, Worker
from tests.netns.namespaces import Namespace, namespace

JANITOR_S = 420.0  # beyond its grace period: it puts off for five minutes what changes while it looks


@dataclass(frozen=True)
class Asked:
    """``store``: local, etcd, kubernetes; ``mode``: one-shot, served (the CNI server alone) or agent (all of
    calico-node); ``power``: power cuts, on the embedded datastore; ``only``: a word in the names of all that happens;
    ``pace_s``: the mean time between two things that go wrong around the calls; ``hold``: nothing begins while this
    file exists; ``also``: kinds of faults that a run has only when they are asked for.
    """

    store: str = "local"
    mode: str = "served"
    hosts: int = 1
    members: int = 1
    operations: int = 2000
    workers: int = 8
    seed: int = 0
    bundle: Path | None = None
    power: bool = False
    only: str = ""
    pace_s: float = 0.85
    hold: Path | None = None
    also: tuple[str, ...] = ()

    @property
    def is_held(self) -> bool:
        return self.hold is not None and self.hold.exists()


def run(asked: Asked) -> tuple[Verdict, dict[str, Any]]:
    """Whatever happens there is a verdict: a run that breaks or hangs is a violation."""
    began = time.monotonic()
    verdict, counts = Verdict(), Counter[str]()
    if asked.bundle is None:
        load_modules()
    try:
        with ExitStack() as held:
            _run(asked, verdict, counts, held)
    except Exception as e:
        traceback.print_exc()
        verdict.violations.append(f"the run broke: {type(e).__name__}: {e}")
    return verdict, _report(asked, verdict, counts, began)


def _run(asked: Asked, verdict: Verdict, counts: Counter[str], held: ExitStack) -> None:
    hosts = 1 if asked.store == "local" else asked.hosts
    made = held.enter_context(lab(asked.store, hosts, asked.members, block_device=asked.power))
    made.bundle = asked.bundle
    history = made.root / "history"
    output = str(history)
    slots = [_slots(made, held, w, made.hosts[w % hosts]) for w in range(asked.workers)]
    spares = [held.enter_context(namespace("spare")) for _ in made.hosts]
    group = held.enter_context(lonely_group()) if "limits" in asked.also else None
    options = Options(output, asked.bundle, made.clock.environ, asked.hold, asked.also, group)
    crew = held.enter_context(
        Crew(
            [
                _work(made.hosts[w % hosts], w, asked, slots[w], options, asked.operations // asked.workers)
                for w in range(asked.workers)
            ],
            history,
            lambda: asked.is_held,
        )
    )
    if asked.mode != "one-shot":
        for host in made.hosts:
            host.server = Server(made, host, asked.mode)
            held.callback(host.server.stop)
    if made.kube is not None and asked.mode != "agent":
        made.controllers = Controllers(made)
        held.callback(made.controllers.stop)
    cuts = PowerCuts(made.hosts[0], crew.pids, history, asked.seed) if asked.power else None
    acts = Acts(made, asked.seed, asked.only, pace_s=asked.pace_s, held=lambda: asked.is_held, also=asked.also)
    try:
        with acts, cuts or ExitStack():
            crew.wait(lambda: _all_ready(output, asked.workers), "the workers have made their calls")
        for host in made.hosts:
            if host.server is not None:
                host.node.await_server(host.server.process)
        verdict.violations += _compare_living(made, output, asked.workers)
        Path(f"{output}.drain").touch()
        crew.wait(crew.has_ended, "the workers have deleted everything")
        verdict.violations += _left_over(made, spares)
    finally:
        counts.update(acts.counts)
        verdict.violations += acts.violations
        judge(read_history(history)[0], verdict)
        for w in range(asked.workers):
            told = Path(f"{output}.{w}")
            found = (
                json.loads(told.read_text()) if told.exists() else {"faults": {}, "problems": [f"worker {w} is gone"]}
            )
            counts.update(found["faults"])
            verdict.violations += found["problems"]
        for host in made.hosts:
            logs = (host.node.root / "server.log", host.node.root / "cni.log")
            verdict.violations += [f"a trace: {trace}" for log in logs for trace in traces_in(log)[:3]]
        if made.controllers is not None:
            verdict.violations += [f"a trace: {trace}" for trace in traces_in(made.controllers.log)[:3]]
            verdict.cleaned = made.controllers.handles()
        if cuts is not None:
            counts["power cut"] = cuts.copies
            verdict.violations += cuts.violations


def _report(asked: Asked, verdict: Verdict, counts: Counter[str], began: float) -> dict[str, Any]:
    return {
        "store": asked.store,
        "mode": asked.mode,
        "hosts": asked.hosts,
        "members": asked.members,
        "bundle": asked.bundle is not None,
        "seed": asked.seed,
        "workers": asked.workers,
        "power": asked.power,
        "pace_s": asked.pace_s,
        "also": list(asked.also),
        "seconds": round(time.monotonic() - began),
        "operations": dict(verdict.operations),
        "outcomes": dict(sorted(verdict.outcomes.items())),
        "texts": dict(sorted(verdict.texts.items())),
        "handles removed by the janitor": verdict.cleaned,
        "faults": {name: count for name, count in sorted(counts.items()) if count},
        "violation count": len(verdict.violations),
        "violations": verdict.violations[:50],
    }


# -- the workers -------------------------------------------------------------------------------------------------------


def _slots(made: Lab, held: ExitStack, number: int, host: Host) -> list[Slot]:
    """Two sandboxes of pods, a container by itself where that is possible, and two interfaces of calico-ipam alone."""

    def fresh(label: str) -> Namespace:
        return held.enter_context(namespace(f"f{number}-{label}"))

    pods = [_pod(made, host, f"pod-{number}-{i}") for i in range(2)]
    slots = [Slot(fresh(f"p{i}"), pod=args) for i, args in enumerate(pods)]
    if not isinstance(host.node, KubeNode):
        slots.append(Slot(fresh("c")))
    shared = fresh("i")
    return slots + [Slot(shared, ifname, fixed=f"ipam-{number}") for ifname in ("eth0", "net1")]


def _pod(made: Lab, host: Host, name: str) -> str:
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={PODS};K8S_POD_NAME={name}"
    if made.kube is None:
        return args
    return f"{args};K8S_POD_UID={made.kube.create_pod(PODS, name, host.node.nodename)['metadata']['uid']}"


def _work(host: Host, number: int, asked: Asked, slots: list[Slot], options: Options, operations: int) -> int:
    """In a process of its own: the faults it made and the problems it saw, as JSON beside the history."""
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a run that fails leaves no worker behind
    faulthandler.register(ASKS_WHERE, all_threads=True)
    output, worker = options.output, Worker(host.node, number, asked.seed, slots, options)
    try:
        worker.run(operations)
        Path(f"{output}.living-{number}").write_text(json.dumps(worker.living()))
        Path(f"{output}.ready-{number}").touch()
        until(Path(f"{output}.drain").exists, "all faults have ended", LONGEST_S, pause_s=0.05)
        worker.drain()
        Path(f"{output}.{number}").write_text(json.dumps({"faults": worker.faults, "problems": worker.problems}))
        os._exit(0)
    except BaseException as e:
        problems = [*worker.problems, f"worker {number}: {e!r}"]
        Path(f"{output}.{number}").write_text(json.dumps({"faults": worker.faults, "problems": problems}))
        os._exit(1)


def _all_ready(output: str, workers: int) -> bool:
    return all(Path(f"{output}.ready-{w}").exists() or Path(f"{output}.{w}").exists() for w in range(workers))


# -- the judgement -----------------------------------------------------------------------------------------------------


def _compare_living(made: Lab, output: str, workers: int) -> list[str]:
    """What lives holds what it was given."""
    taken = made.stored().taken
    found = []
    for w in range(workers):
        path = Path(f"{output}.living-{w}")
        for container, addresses in json.loads(path.read_text()) if path.exists() else ():
            found += [
                f"{address} of {container}, which lives, is held by {taken.get(address)!r}"
                for address in addresses
                if container not in taken.get(address, "")
            ]
    return found


def _left_over(made: Lab, spares: list[Namespace]) -> list[str]:
    """What is owed is paid by calls that succeed; what is left when many of them have paid nothing more.

    A server whose clock said for most of a run that the API server's certificate is not yet valid owes thousands.
    """
    found = []
    for host, spare in zip(made.hosts, spares, strict=True):
        owed, paid_at, n = len(host.node.intents()), time.monotonic(), 0
        while owed and time.monotonic() < paid_at + PATIENCE_S:
            _call(made, host, "DEL", f"payer-{n}", spare)
            n += 1
            if (left := len(host.node.intents())) < owed:
                owed, paid_at = left, time.monotonic()
        links = _links_left(host)
        routes = [r for v in (4, 6) for r in host.node.host.routes(v) if str(r.get("dev", "")).startswith("cali")]
        files = [path.name for path in host.node.root.rglob("*.new")]
        what = {"links": links, "routes": routes, "files": files, "owed": host.node.intents()}
        found += [f"left over on {host.node.nodename}: {name}: {value}" for name, value in what.items() if value]
    return found + [f"left over: {name}: {value}" for name, value in _stored_at_last(made).of_containers().items()]


def _links_left(host: Host) -> list[str]:
    """A renamed host end whose namespace was ended goes when the kernel comes to it; one with its own name, by DEL."""
    end = time.monotonic() + GRACE_S
    while True:
        links = sorted(name for name in host.node.host.link_names() if name.startswith(("cali", "renamed")))
        if not links or links[0].startswith("cali") or time.monotonic() > end:
            return links
        select.select((), (), (), 0.1)


def _stored_at_last(made: Lab) -> Stored:
    """On Kubernetes a handle's creation that a killed process has sent may be carried out after the DEL has found
    nothing. Such a handle is the janitor's, and nothing else is.
    """
    stored = made.stored()
    end = time.monotonic() + (GRACE_S + JANITOR_S if made.kube is not None else 0.0)
    while stored.idle_handles() and time.monotonic() < end:
        select.select((), (), (), 5.0)
        stored = made.stored()
    return stored


def _call(made: Lab, host: Host, command: str, container: str, spare: Namespace) -> Reply:
    """Through a child that is in the host's namespace."""
    environ = {k: v for k, v in host.node.env(command, container, spare.path, "eth0", "").items() if v}
    stdin = json.dumps(host.node.conf(name="payers")).encode()
    rc, out = host.node.host.call(_finish, environ, stdin, made.bundle, timeout_s=150)
    return Reply(rc, json.loads(out) if out.strip() else None)


def _finish(environ: dict[str, str], stdin: bytes, bundle: Path | None) -> tuple[int | None, bytes]:
    rc, out, _ = begin("calico", environ, stdin, bundle).finish(120)
    return rc, out
