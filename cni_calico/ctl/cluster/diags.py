"""``calicoctl cluster diags``: one archive of what is stored and, on Kubernetes, of Calico's pods and their logs;
without Kubernetes of this host, as in ``node diags``.

Rule: everything comes from the datastore and the API server, or from this host, and kubectl is not needed; if something
cannot be collected, a text in the archive says why. Everything passes through redaction.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any
from urllib.parse import quote

from cni_calico.ctl.ipam import check as ipam_check
from cni_calico.ctl.ipam import show as ipam_show
from cni_calico.ctl.ipam.lost import api_of, group_of, is_kubernetes
from cni_calico.ctl.node.diags import host_items
from cni_calico.ctl.opening import open_session
from cni_calico.ctl.output.archive import ArchiveMember, write_archive
from cni_calico.ctl.output.redaction import secrets_in
from cni_calico.ctl.output.texts import render_json, render_yaml
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.ctl.version import CLIENT
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.errors import CalicoError
from cni_calico.model.keys import (
    CLUSTER,
    PLURALS,
    AffinityList,
    BlockList,
    HandleList,
    IPAMConfigList,
    ListKey,
    ResourceList,
    etcd_path,
)

LOG_BYTES = 10 << 20  # the maximum from one container's log, taken from its end
NAMES = ("calico-node", "calico-kube-controllers", "calico-typha")
_IPAM: Mapping[str, ListKey] = {
    "blocks": BlockList(),
    "affinities": AffinityList(),
    "handles": HandleList(),
    "configuration": IPAMConfigList(),
}
_OBJECTS: Mapping[str, str] = {
    "nodes": "/api/v1/nodes",
    "namespaces": "/api/v1/namespaces",
    "events": "/api/v1/events?limit=1000",
    "daemonsets": "/apis/apps/v1/daemonsets",
    "deployments": "/apis/apps/v1/deployments",
    "custom-resource-definitions": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}


def collect(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises CommandFailed if the archive cannot be written, DatastoreError if there is no datastore."""
    name = f"calico-cluster-diags-{time.strftime('%Y%m%d_%H%M%S')}"
    target = arguments.archive or f"{name}-{os.getpid()}.tar.gz"
    secrets = secrets_in("".join(f"{key}={value}\n" for key, value in environ.items()))
    with open_session(arguments, environ) as session:
        session.store.get(CLUSTER, session.deadline)  # an archive that contains only failures would be useless
        host: Iterator[ArchiveMember] = iter(())
        if not is_kubernetes(session):
            host, in_use = host_items(environ)
            secrets |= in_use
        items = chain(_items(session, arguments), _of_this_host(host))
        count = write_archive(target, name, items, secrets)
        session.take_damaged()  # its failures are named in the archive
    return (
        f"Diagnostics saved to {target} ({count} files).\n"
        "What looks like a secret is hidden in it; addresses and names are not: see who gets it.\n"
    )


def _items(session: Session, arguments: Namespace) -> Iterator[ArchiveMember]:
    yield "version", CLIENT
    for kind, plural in PLURALS.items():
        yield f"resources/{plural}.yaml", _try(_stored, session, ResourceList(kind))
    for what, listing in _IPAM.items():
        yield f"ipam/{what}.yaml", _try(_stored, session, listing)
    yield "ipam/usage", _try(ipam_show.render_usage, session)
    yield "ipam/check", _try(ipam_check.text_of, session)
    if is_kubernetes(session):
        yield "api-group", _try(_describe_group, session)
        yield from _kubernetes(session, arguments)
    yield "left-out", "".join(f"{why}\n" for _, why in session.take_damaged())


def _of_this_host(items: Iterator[ArchiveMember]) -> Iterator[ArchiveMember]:
    """Where there is no API server that has everybody's logs."""
    host = os.uname().nodename
    first = next(items, None)
    if first is not None:
        yield "hosts", f"This archive has the host {host}; of others 'calicoctl node diags' there makes an archive.\n"
        for name, text in chain((first,), items):
            yield f"host-{host}/{name}", text


def _try(do: Callable[..., str], *arguments: object) -> str:
    try:
        return do(*arguments)
    except CommandFailed as e:
        return e.output + e.message
    except CalicoError as e:
        return f"{e}\n"


def _stored(session: Session, listing: ListKey) -> str:
    found = session.store.list(listing, session.deadline)
    return render_yaml({etcd_path(item.key): item.value for item in found.items})


def _describe_group(session: Session) -> str:
    choice = group_of(session)
    said = f"{choice.choose(session.deadline).name}, {choice.why}\n"
    other = choice.read_unlocked_other(session.deadline)
    return said + (f"the records in {other} are unlocked too\n" if other else "")


# -- Kubernetes -------------------------------------------------------------------------------------------------------


def _kubernetes(session: Session, arguments: Namespace) -> Iterator[ArchiveMember]:
    for what, path in _OBJECTS.items():
        yield f"kubernetes/{what}.json", _try(_objects, session, path)
    try:
        pods = _pods(session)
    except CalicoError as e:
        yield "kubernetes/pods.json", f"{e}\n"
        return
    yield "kubernetes/pods.json", render_json(pods)
    chosen = select_pods(pods, arguments.focus_nodes.split(","), arguments.max_logs)
    logs = [(pod, container) for pod in chosen for container in containers_of(pod)]
    with ThreadPoolExecutor(max(1, arguments.max_parallelism)) as pool:
        yield from pool.map(lambda one: _log(session, one[0], one[1], arguments.since), logs)


def _objects(session: Session, path: str) -> str:
    reply = api_of(session).send(ApiRequest("GET", path, f"read {path}"), session.deadline)
    return render_json([without_secrets(item) for item in reply.document.get("items") or ()])


def without_secrets(item: Any) -> Any:
    """PURE: an object without the API server's own bookkeeping of its fields, and without the copy of itself."""
    if not isinstance(item, Mapping):
        return item
    metadata = dict(item.get("metadata") or {})
    metadata.pop("managedFields", None)
    annotations = dict(metadata.get("annotations") or {})
    annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return {**item, "metadata": {**metadata, "annotations": annotations}}


def _pods(session: Session) -> list[Any]:
    selector = quote(f"k8s-app in ({','.join(NAMES)})")
    path = f"/api/v1/pods?labelSelector={selector}"
    reply = api_of(session).send(ApiRequest("GET", path, "list Calico's pods"), session.deadline)
    return [without_secrets(item) for item in reply.document.get("items") or ()]


def select_pods(pods: list[Any], focus: list[str], most: int) -> list[Any]:
    """PURE: at most ``most`` pods of each name, those on the nodes in ``focus`` first."""
    chosen: list[Any] = []
    for name in NAMES:
        mine = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get("k8s-app") == name]
        mine.sort(key=lambda pod: (pod.get("spec") or {}).get("nodeName") not in focus)
        chosen += mine[: max(0, most)]
    return chosen


def containers_of(pod: Any) -> list[str]:
    """PURE"""
    spec = pod.get("spec") or {}
    found = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return [str(container.get("name")) for container in found]


def _log(session: Session, pod: Any, container: str, since_s: float) -> ArchiveMember:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}/log?container={quote(container)}"
    path += f"&limitBytes={LOG_BYTES}" + (f"&sinceSeconds={max(1, round(since_s))}" if since_s else "")
    doing = f"read the log of {container} in pod {namespace}/{name}"
    return f"logs/{name}/{container}.log", _try(lambda: api_of(session).text(path, session.deadline, doing))
