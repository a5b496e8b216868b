#!/usr/bin/env python3
"""What the list of all pods takes of an agent's processor at a start, part by part, on a real API server.

    pod_lists.py [--policies 1000] [--repeat 5]                     as root, minutes

The cluster is that of starts.py with ``--store kubernetes``. Each part is called alone, without garbage collection, as
at a start; the least of the repetitions, in ms of this thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.datastore.http import Connection
from cni_calico.datastore.interface import Reading, Versioned
from cni_calico.datastore.kubernetes.attempt import READ, ApiRequest, Attempt
from cni_calico.datastore.kubernetes.items import ItemParser
from cni_calico.datastore.kubernetes.layout import read_pod
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.model.keys import ResourceList
from cni_calico.nodeagent.policing.feed.decoding import RecordDecoder
from tests.bench.policy.api_server import PROBE_INTERFACES, open_api_server
from tests.bench.policy.changes import open_lab
from tests.bench.policy.starts import Starts
from tests.netns.policing.lab import NODE

LIST = ApiRequest("GET", "/api/v1/pods?resourceVersion=0", "list pods")
PIECE = 16 << 10  # about what arrives at once
LIMIT_S = 600.0


class Parts:
    """What a list of pods is made of. Each method does one part again; ``pieces`` are the answer's bytes."""

    def __init__(self, store: KubernetesStore) -> None:
        self.store = store
        self.pieces: list[bytes] = []
        self.transport()
        self.pods = json.loads(b"".join(self.pieces))["items"]
        self.found: list[Versioned] = []
        self.listing()
        self.decoder = RecordDecoder(NODE, lambda kind, spec: (0, True))

    def transport(self) -> None:
        """TLS and chunks."""
        answer = Attempt(self.store.api, LIST, Deadline.after(LIMIT_S)).open(READ)
        assert isinstance(answer, Connection)
        self.pieces = list(answer.chunks(lambda: Deadline.after(LIMIT_S), None))
        answer.close()

    def parsing(self) -> None:
        text, parser = b"".join(self.pieces), ItemParser()
        for at in range(0, len(text), PIECE):
            for _ in parser.feed(text[at : at + PIECE]):
                pass

    def endpoints(self) -> None:
        for pod in self.pods:
            read_pod(pod, "cali")

    def listing(self) -> None:
        found: list[Versioned] = []

        def receive(read: Versioned) -> Versioned:
            found.append(read)
            return read

        self.store.list(
            ResourceList("WorkloadEndpoint"),
            Deadline.after(LIMIT_S),
            reading=Reading(receive, cached=True, ordered=False),
        )
        self.found = found

    def decoding(self) -> None:
        for item in self.found:
            self.decoder.decode(item)


def least_ms(do: Callable[[], Any], repeat: int) -> float:
    found = []
    for _ in range(repeat):
        begun = time.thread_time()
        do()
        found.append(1000 * (time.thread_time() - begun))
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args()
    with ExitStack() as stack:
        lab = open_lab("bench-pods", stack, PROBE_INTERFACES, etcd=False)
        bench = Starts(lab, chosen.policies, [], "kubernetes", 0)
        stack.callback(lambda: bench.store.close())
        kube = open_api_server(stack)
        bench.fill_api_server(kube)
        store = kube.store()
        stack.callback(store.close)
        parts = Parts(store)
        gc.freeze()
        gc.disable()
        size = sum(map(len, parts.pieces)) / 1e6
        print(f"{len(parts.pods)} pods, {size:.1f} MB, load average {os.getloadavg()[0]:.1f}\n")
        print("| part | CPU ms |\n|---|---|")
        for name in ("transport", "parsing", "endpoints", "listing", "decoding"):
            print(f"| {name} | {least_ms(getattr(parts, name), chosen.repeat):.0f} |", flush=True)


if __name__ == "__main__":
    main()
