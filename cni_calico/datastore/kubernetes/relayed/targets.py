"""Which relay to use (a configured address, or an endpoint of a Service), and with which identity.

Rule: the order is random, so that the nodes of a cluster spread over its relays, and a relay that failed comes last.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import quote
from cni_calico.datastore.kubernetes.login import Login
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreDenied, DatastoreUnavailable
from cni_calico.model.access import KubernetesAccess, RelayAccess, parse_relay_address
from cni_calico.regular import read_regular

SLICES_OF = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{}"

_FILES = "it is named by FELIX_TYPHACAFILE, FELIX_TYPHACERTFILE, FELIX_TYPHAKEYFILE or FELIX_TYPHATOKENFILE"


class RelayTargets:
    """``direct`` is the API server, which knows the Service's endpoints, and our token."""

    def __init__(self, access: RelayAccess, direct: KubernetesAPI) -> None:
        self._access = access
        self._direct = direct
        self._failed: dict[tuple[str, int], int] = {}
        self._count = 0
        self._known: Sequence[tuple[str, int]] = ()

    def next(self, deadline: Deadline) -> tuple[str, KubernetesAPI]:
        """The relay to try now: its address and a client for it. Raises DatastoreError, DeadlineExceeded."""
        found = self._find(deadline)
        if not found:
            raise DatastoreUnavailable(
                f"cannot use a relay: Service {self._access.namespace}/{self._access.service} has no ready endpoint"
            )
        host, port = min(found, key=lambda each: (self._failed.get(each, 0), random.SystemRandom().random()))
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return shown, KubernetesAPI(KubernetesAccess(), login=lambda deadline: self._login(shown, deadline))

    def failed(self, shown: str) -> None:
        """Note that this relay has failed: others are tried first."""
        self._count += 1
        self._failed[parse_relay_address(shown)] = self._count

    def is_direct_ready(self, deadline: Deadline) -> bool:
        """Whether the API server says that it can be used."""
        try:
            self._direct.text("/readyz", deadline, "ask the API server")
        except CalicoError:
            return False
        return True

    def _find(self, deadline: Deadline) -> Sequence[tuple[str, int]]:
        """The relays' addresses; while the API server does not answer, those that were known before."""
        if self._access.address:
            return (parse_relay_address(self._access.address),)
        try:
            self._known = self._read_endpoints(deadline)
        except CalicoError:
            if not self._known:
                raise
        return self._known

    def _read_endpoints(self, deadline: Deadline) -> Sequence[tuple[str, int]]:
        path = SLICES_OF.format(quote(self._access.namespace), quote(self._access.service))
        reply = self._direct.send(
            ApiRequest("GET", path, f"find relays: list endpoints of {self._access.service}"), deadline
        )
        found = []
        for listed in reply.document.get("items") or ():
            ports = [
                port.get("port") for port in listed.get("ports") or () if port.get("name") in ("calico-typha", "", None)
            ]
            for endpoint in listed.get("endpoints") or ():
                if ports and ports[0] and (endpoint.get("conditions") or {}).get("ready") is not False:
                    found += [(str(address), int(ports[0])) for address in endpoint.get("addresses") or ()]
        return found

    def _login(self, shown: str, deadline: Deadline) -> Login:
        """The login for a relay; its files are read again each time, because certificates and tokens are replaced while
        the agent runs.
        """
        access = self._access
        name = f"{access.service}.{access.namespace}.svc" if not access.address else ""
        certificate = key = b""
        if access.certificate_file:
            certificate = _read(access.certificate_file, "certificate")
            key = _read(access.key_file, "key")
        return Login(
            f"https://{shown}",
            ca=_read(access.ca_file, "certificate authority"),
            server_name=name,
            certificate=certificate,
            key=key,
            authorization=self._authorization(deadline) if not certificate else "",
            peer=(access.common_name, access.uri),
        )

    def _authorization(self, deadline: Deadline) -> str:
        """The Authorization header for a relay: the token that is for relays only; without such a file, the one that
        the agent uses with the API server. If the file cannot be read nothing stands in for it.
        """
        if self._access.token_file:
            text = _read(self._access.token_file, "token").decode("latin-1").strip()
            if not (text.isascii() and text.isprintable() and text):
                raise DatastoreDenied(
                    f"cannot use the relay's token {self._access.token_file}: it is empty, or no token", details=_FILES
                )
            return f"Bearer {text}"
        try:
            return self._direct.login(deadline).authorization
        except CalicoError:
            return ""  # the relay's answer then says which credentials it wants


def _read(path: str, what: str) -> bytes:
    try:
        return read_regular(path)
    except OSError as e:
        raise DatastoreDenied(
            f"cannot read the relay's {what} {path}: {(e.strerror or str(e)).lower()}",
            details=_FILES,
        ) from e
