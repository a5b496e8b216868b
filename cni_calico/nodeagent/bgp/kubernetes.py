"""What BGP needs from Kubernetes itself: passwords from Secrets, and the services whose addresses are announced.

Rule: one GET per named Secret, at most every half minute, in one namespace only; services are watched while one of
their ranges is configured. A known password is not forgotten when the API server is down.
"""

from __future__ import annotations

from binascii import Error, a2b_base64
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from operator import eq
from typing import Any

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Versioned
from cni_calico.datastore.kubernetes.layout import ENDPOINT_SLICE, SERVICE, secret_path
from cni_calico.datastore.kubernetes.login import NAMESPACE
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreDenied, DatastoreUnsupported
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.nodeagent.bgp.config.findings import BgpProblem
from cni_calico.nodeagent.bgp.config.services import Service, parse_service
from cni_calico.nodeagent.bgp.config.values import SecretRef
from cni_calico.policy.kubernetes import SERVICE_LABEL

READ_AGAIN_S = 30.0
SYNC_S = 10.0


class Secrets:
    """The values of keys of Secrets; ``store`` None: there is no Kubernetes, and so there are no Secrets."""

    def __init__(self, store: KubernetesStore | None, namespace: str = NAMESPACE) -> None:
        self.namespace = namespace
        self._store = store
        self._known: dict[str, Mapping[str, str]] = {}  # by name: only those that were read at least once
        self._refusals: dict[str, str] = {}
        self._fresh = Deadline.after(0.0)

    def read(self, wanted: Iterable[SecretRef], deadline: Deadline) -> tuple[dict[SecretRef, str], list[BgpProblem]]:
        """The values that are available, and why others are not.

        Raises DatastoreError, DeadlineExceeded if a Secret that was never read cannot be read now: then the
        configuration in force stays, so that it does not lose its sessions.
        """
        refs = sorted(set(wanted))
        names = {ref.name for ref in refs}
        if self._store is None:
            text = "cannot be read: this node knows no Kubernetes API server, which is where Secrets are"
            return {}, [BgpProblem(f"Secret {name}", text) for name in sorted(names)]
        self._refresh(names, deadline)
        values = {ref: self._known[ref.name][ref.key] for ref in refs if ref.key in self._known.get(ref.name, {})}
        return values, [BgpProblem(f"Secret {self.namespace}/{n}", self._refusals[n]) for n in sorted(self._refusals)]

    def _refresh(self, names: set[str], deadline: Deadline) -> None:
        self._known = {name: values for name, values in self._known.items() if name in names}
        self._refusals = {name: why for name, why in self._refusals.items() if name in names}
        all_again = self._fresh.expired()
        for name in sorted(names):
            if all_again or name not in self._known:
                self._read_one(name, deadline)
        if all_again:
            self._fresh = Deadline.after(READ_AGAIN_S)

    def _read_one(self, name: str, deadline: Deadline) -> None:
        assert self._store is not None
        path, doing = secret_path(self.namespace, name), f"read Secret {self.namespace}/{name}"
        self._refusals.pop(name, None)
        try:
            found = self._store.api.get(path, deadline, doing)
        except (DatastoreDenied, DatastoreUnsupported) as e:
            self._refusals[name] = str(e)
        except CalicoError:
            if name not in self._known:
                raise
        else:
            self._known.pop(name, None)
            if found is not None:
                self._known[name] = parse_secret(found)


def parse_secret(document: Mapping[str, Any]) -> dict[str, str]:
    """PURE: the keys and values of a Secret; values that are not base64 are left out."""
    out = {}
    for key, value in (document.get("data") or {}).items():
        try:
            out[key] = a2b_base64(value, strict_mode=True).decode("utf-8", "surrogateescape")
        except (Error, ValueError, TypeError):
            continue
    return out


def _slim_slice(item: Versioned) -> Mapping[str, Any]:
    """The part of an EndpointSlice that matters here: a cluster may have many, with many endpoints each."""
    labels = (item.value.get("metadata") or {}).get("labels") or {}
    return {"service": labels.get(SERVICE_LABEL), "endpoints": item.value.get("endpoints") or []}


def _slim_service(item: Versioned) -> Mapping[str, Any]:
    metadata = item.value.get("metadata") or {}
    return {
        "metadata": {name: metadata.get(name) for name in ("namespace", "name")},
        "spec": item.value.get("spec") or {},
        "status": item.value.get("status") or {},
    }


class AnnouncedServices:
    """The cluster's services, followed from the first request until ``stop``."""

    def __init__(self, store: KubernetesStore | None, on_change: Callable[[], None]) -> None:
        self._store = store
        self._on_change = on_change
        self._caches: tuple[Cache[Mapping[str, Any]], Cache[Mapping[str, Any]]] | None = None
        self._parsed: tuple[tuple[Service, ...], list[BgpProblem]] | None = None

    def read(self, deadline: Deadline) -> tuple[tuple[Service, ...], list[BgpProblem]]:
        """The services as last seen; none, with the reason, if they may not be read.

        Raises DatastoreError, DeadlineExceeded while they temporarily cannot be read.
        """
        if self._store is None:
            text = "serviceClusterIPs, serviceExternalIPs, serviceLoadBalancerIPs: single services are not announced: "
            return (), [BgpProblem("BGPConfiguration", text + "this node knows no Kubernetes API server")]
        if self._caches is None:
            self._caches = self._follow(SERVICE, _slim_service), self._follow(ENDPOINT_SLICE, _slim_slice)
        for cache in self._caches:
            refusal = _await(cache, deadline.sooner(SYNC_S))
            if refusal:
                return (), [BgpProblem("BGPConfiguration", f"single services are not announced: {refusal}")]
        parsed = self._parsed
        if parsed is None:
            self._parsed = parsed = _parse_all(*(cache.records() for cache in self._caches))
        return parsed

    def _follow(self, kind: str, decode: Callable[[Versioned], Mapping[str, Any]]) -> Cache[Mapping[str, Any]]:
        assert self._store is not None
        listing = ResourceList(kind)
        return Cache(
            self._store, Kept(listing, decode, keep_documents=False, same=eq), Listeners(on_change=self._changed)
        )

    def _changed(self, keys: frozenset[Key]) -> None:
        self._parsed = None
        self._on_change()

    def stop(self) -> None:
        for cache in self._caches or ():
            cache.stop()
        self._caches = self._parsed = None


def _await(cache: Cache[Any], deadline: Deadline) -> str:
    """Wait for the first list; returns why it is refused, "" once it is there. Raises DatastoreError,
    DeadlineExceeded.
    """
    cache.wait_until(lambda: cache.synced or cache.error is not None, deadline)
    if not cache.synced and isinstance(cache.error, (DatastoreDenied, DatastoreUnsupported)):
        return str(cache.error)
    cache.wait_synced(deadline)
    return ""


def _parse_all(
    services: Mapping[Key, Mapping[str, Any]], slices: Mapping[Key, Mapping[str, Any]]
) -> tuple[tuple[Service, ...], list[BgpProblem]]:
    """PURE."""
    of_service: defaultdict[tuple[str, object], list[Mapping[str, Any]]] = defaultdict(list)
    for key, item in slices.items():
        assert isinstance(key, ResourceKey)
        of_service[key.namespace, item["service"]].append(item)
    found: list[Service] = []
    problems: list[BgpProblem] = []
    for key, document in services.items():
        assert isinstance(key, ResourceKey)
        service, wrong = parse_service(document, of_service[key.namespace, key.name])
        problems += wrong
        found += [service] if service is not None else []
    return tuple(found), problems
