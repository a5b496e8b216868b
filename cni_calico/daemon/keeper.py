"""What the agent keeps right beside the data plane: this node's tunnel addresses and its detected addresses.

Rule: each is a loop of its own thread that does one thing, waits, and does it again; a failure is logged once and tried
again sooner. ``stopping`` ends a wait at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cni_calico.datastore.interface import Datastore
from cni_calico.errors import CalicoError
from cni_calico.nodeagent.context.context import Context
from cni_calico.nodeagent.keepers.tunnel_addresses import allocate_tunnel_addresses, read_pod_cidrs
from cni_calico.nodeagent.startup.doubts import Doubt
from cni_calico.nodeagent.startup.run import refresh_addresses
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.nodeagent.view.sources import Sources

TUNNELS_S = 300.0
RETRY_S = 5.0
LAST_RETRY_S = 60.0


@dataclass(slots=True)
class Keeper:
    """Calls ``do`` at the start, every ``interval_s`` and when woken."""

    name: str
    context: Context
    do: Callable[[], None]
    interval_s: float
    _wake: threading.Event = field(default_factory=threading.Event)
    _said: str = ""
    _retry_s: float = RETRY_S

    def wake(self) -> None:
        self._wake.set()

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._wake.clear()
            pause = self.interval_s if self._try() else self._next_retry()
            self._wait(stopping, pause)

    def _try(self) -> bool:
        try:
            self.do()
        except CalicoError as e:
            self.context.troubles[self.name] = str(e)
            if str(e) != self._said:
                self._said = str(e)
                self.context.log.error(f"{self.name}: {e}" + (f" ({e.details})" if e.details else ""))
            return False
        self.context.troubles.pop(self.name, None)
        self._said, self._retry_s = "", RETRY_S
        return True

    def _next_retry(self) -> float:
        now, self._retry_s = self._retry_s, min(2 * self._retry_s, LAST_RETRY_S)
        return now

    def _wait(self, stopping: threading.Event, seconds: float) -> None:
        left = seconds
        while left > 0 and not stopping.is_set() and not self._wake.is_set():
            self._wake.wait(min(left, 0.5))
            left -= 0.5


@dataclass(slots=True)
class TunnelKeeper:
    """Looks again when what tunnel addresses depend on changed: pools, this node's labels and what it tells."""

    context: Context
    node: str
    keeper: Keeper = field(init=False)
    _depends: object = None

    def __post_init__(self) -> None:
        self.keeper = Keeper("tunnel addresses", self.context, self._do, TUNNELS_S)

    def _do(self) -> None:
        if self.context.settings.backend == "none":
            return
        allocate_tunnel_addresses(self.context, self.node, pod_cidrs=read_pod_cidrs(self.context))

    def follow(self, snapshot: Snapshot) -> None:
        own = snapshot.own
        told = None if own is None else (own.ipv4_ipip_tunnel, own.ipv4_vxlan_tunnel, own.ipv6_vxlan_tunnel)
        labels = {} if own is None else own.metadata.labels
        depends = (snapshot.pools, told, sorted(labels.items()))
        if depends != self._depends:
            self._depends = depends
            self.keeper.wake()


def address_keeper(context: Context, node: str, on_doubts: Callable[[tuple[Doubt, ...]], None]) -> Keeper:
    """Detects the node's addresses again; what was not detected is only looked at for doubts."""

    def look() -> None:
        on_doubts(refresh_addresses(context, node))

    return Keeper("the node's addresses", context, look, context.settings.autodetect_poll_s or 60.0)


def follow(store: Datastore, node: str, on_snapshot: Callable[[Snapshot], None], stopping: threading.Event) -> None:
    """Tell every new view of the datastore, where no agent does it."""
    changed = threading.Event()
    sources = Sources(store, node, changed.set)
    try:
        while not stopping.is_set():
            if changed.wait(0.5) and sources.synced:
                changed.clear()
                on_snapshot(sources.snapshot())
    finally:
        sources.stop()
