"""Looks from time to time whether kube-proxy on this node masquerades what the pools' pods send to services.

Rule: only reports: kube-proxy is not ours. Nothing is asked where there is no Kubernetes.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from cni_calico.daemon.keeper import Keeper
from cni_calico.daemon.said import Said
from cni_calico.kernel.filter.service_rules import read_service_sources
from cni_calico.model.resources import IPPool
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.policy.service_sources import ServiceSources, masqueraded_pools, render_masqueraded

LOOK_S = 300.0
SOON_S = 20.0  # kube-proxy may start after us
_SOON = 15  # times
TOPIC, SEEN = "services", "service_sources"  # in the agent's status
_ORIGIN = "its rules on this node"


class ServiceSourcesLook:
    """``follow`` gives it the agent's view; ``keeper`` runs in its own thread and writes ``facts``."""

    def __init__(self, context: Context, facts: MutableMapping[str, Any]) -> None:
        self._context = context
        self._facts = facts
        self._said = Said(context.log)
        self._pools: tuple[IPPool, ...] = ()
        self._looks = 0
        self.keeper = Keeper("kube-proxy", self.look, SOON_S, context.log, context.troubles)

    def use(self, snapshot: Snapshot) -> None:
        """Take the newest pools; may be called from any thread."""
        pools = tuple(snapshot.pools)
        if pools != self._pools:
            self._pools = pools
            self.keeper.wake()

    def look(self) -> None:
        """Raises KernelError, DeadlineExceeded."""
        networks = read_service_sources(self._context.deadline()) if self._pools else ()
        sources = ServiceSources(networks, origin=_ORIGIN)
        text = render_masqueraded(masqueraded_pools(self._pools, sources), sources)
        self._facts[TOPIC], self._facts[SEEN] = [text] if text else [], [str(network) for network in networks]
        self._said.say(TOPIC, [text] if text else [])
        self._looks += 1
        self.keeper.interval_s = LOOK_S if networks or self._looks > _SOON else SOON_S
