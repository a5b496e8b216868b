"""Spreads the clients over the relays, and sends them to other relays before this one ends. Rule: to send a client
away, its watch is ended, one client at a time; it resumes at another relay without listing again. The fair share is
upstream's: the number of clients that each relay would have if one relay failed, and a fifth more, but at least the
lower limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import quote
from cni_calico.datastore.kubernetes.relayed.targets import SLICES_OF
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.relay.server import RelayServer
from cni_calico.relay.settings import RelaySettings

COUNT_S = 10.0


def fair_share(nodes: int, relays: int, settings: RelaySettings) -> int:
    """PURE: how many clients a relay keeps at most; each node is one client."""
    share = settings.upper_limit if relays <= 1 else int(nodes * 1.2 / (relays - 1)) + 1
    return min(settings.upper_limit, max(settings.lower_limit, share))


def count_relays(api: KubernetesAPI, namespace: str, service: str) -> int:
    """The ready endpoints of the relays' Service. Raises DatastoreError, DeadlineExceeded."""
    path = SLICES_OF.format(quote(namespace), quote(service))
    reply = api.send(ApiRequest("GET", path, f"count the relays: list endpoints of {service}"), Deadline.after(COUNT_S))
    found: set[str] = set()
    for listed in reply.document.get("items") or ():
        for endpoint in listed.get("endpoints") or ():
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                found.update(endpoint.get("addresses") or ())
    return len(found)


class Balance:
    """``look`` is called often, by the server's own thread; the relays are counted by another one (``count``)."""

    def __init__(self, server: RelayServer, settings: RelaySettings, nodes: Callable[[], int]) -> None:
        self.share = settings.upper_limit
        self._server = server
        self._settings = settings
        self._nodes = nodes
        self._dropped_at = 0.0

    def count(self, api: KubernetesAPI) -> str:
        """Count the relays; returns why that failed (the share then stays as it was), "" if it did not."""
        try:
            relays = count_relays(api, self._settings.namespace, self._settings.service)
        except CalicoError as e:
            return str(e)
        self.share = fair_share(self._nodes(), relays, self._settings)
        return ""

    def look(self) -> None:
        now = time.monotonic()
        if self._server.streaming > self.share and now - self._dropped_at >= self._settings.drop_interval_s:
            self._dropped_at = now
            self._server.drop_one("balance")

    def send_away(self) -> None:
        """Send all clients to other relays, within the shutdown time."""
        settings, server = self._settings, self._server
        server.connections.stop_accepting()
        until = time.monotonic() + settings.shutdown_s
        while server.streaming and time.monotonic() < until:
            left_s = until - time.monotonic()
            pause_s = min(settings.shutdown_interval_s, 0.95 * left_s / server.streaming)
            next_at = time.monotonic() + pause_s
            if not server.drop_one("shutdown"):
                server.step()  # all of them are busy being sent something
            while server.streaming and time.monotonic() < next_at:
                server.step()
