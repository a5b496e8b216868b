"""The check on one host without Kubernetes: two network namespaces that the host's installed CNI plugin connects.

Rule: what a step makes is registered for removal before it is made; the check leaves nothing behind, even after a
failure.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address
from socket import socket
from typing import Protocol

from cni_calico import directories
from cni_calico.ctl.cluster.connectivity import objects
from cni_calico.ctl.cluster.connectivity.chain import Attached, InstalledNetwork
from cni_calico.ctl.cluster.connectivity.encrypted import read_encrypted
from cni_calico.ctl.cluster.connectivity.findings import (
    FAILED,
    OK,
    OPEN_PORT,
    SKIPPED,
    Trial,
    TrialPlan,
    family_of,
    missing_families,
)
from cni_calico.ctl.cluster.connectivity.host_wires import HostWires
from cni_calico.ctl.cluster.connectivity.other_hosts import MakeAny, read_hosts, try_hosts
from cni_calico.ctl.cluster.connectivity.probes import MakeSocket, answer, open_listeners, own_socket, reach, try_all
from cni_calico.ctl.cluster.connectivity.undisturbed import undisturbed
from cni_calico.ctl.resources import operations
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.interface import Document
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel import named_netns, netns
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.names import CHECK_PREFIX
from cni_calico.nodeagent.status import file as agent_status

_DIRECTORIES = ("CALICO_RUN_DIR", "CALICO_STATE_DIR")
_REMOVAL_S = 30.0
_SERVER, _CLIENT = "server", "client"
_NO_CLUSTER = "there is no Kubernetes here"


class MakeInside(Protocol):
    """A socket inside of a container."""

    def __call__(self, family: int, kind: int, protocol: int = 0, /) -> socket: ...


class HostCheck:
    """``note`` tells the user about what is not a finding; ``environ`` says where this host's agent has its files;
    ``wanted``: the other nodes that are tried, all if none is named.
    """

    def __init__(
        self,
        session: Session,
        network: InstalledNetwork,
        environ: Mapping[str, str],
        note: Callable[[str], None],
        wanted: Collection[str] = (),
    ) -> None:
        self.session = session
        self.wanted = wanted
        self.network = network
        self.environ = {name: environ[name] for name in _DIRECTORIES if environ.get(name)}
        self.note = note
        self.host = f"{CHECK_PREFIX}{os.uname().nodename.lower()}-"
        self.token = f"{os.getpid()}-{os.urandom(2).hex()}"

    def run(self) -> Iterator[Trial]:
        """Raises CommandFailed, KernelError, DatastoreError."""
        if os.geteuid() != 0:
            raise CommandFailed("cannot check the network: it takes root to make network namespaces")
        self._remove_forgotten()
        with ExitStack() as undo:
            made = {role: self._attach(self._name(role), undo) for role in (_SERVER, _CLIENT)}
            addresses = made[_SERVER][1]
            yield Trial("namespaces", OK, f"CNI network {self.network.name} gives {', '.join(addresses)}")
            yield from missing_families(addresses)
            self._serve(made[_SERVER][0], undo)
            for address in addresses:
                why = reach(own_socket, address, OPEN_PORT)
                what = f"{family_of(address)} from this host"
                yield Trial(what, FAILED if why else OK, f"{address}: {why}" if why else address)
            why_unpoliced = self._why_unpoliced()
            plan = TrialPlan(addresses, policed=not why_unpoliced)
            yield from try_all(plan, made[_CLIENT][0], lambda: self._forbid(undo))
            if why_unpoliced:
                yield Trial("policy", SKIPPED, why_unpoliced)
            yield from self._try_others(*made[_CLIENT])
            yield Trial("services", SKIPPED, _NO_CLUSTER)
            yield Trial("DNS", SKIPPED, _NO_CLUSTER)

    def _name(self, role: str) -> str:
        return f"{CHECK_PREFIX}{self.token}-{role}"

    def _container_of(self, name: str) -> Attached:
        return Attached(self.network, name, named_netns.path_of(name), self.environ)

    def _try_others(self, make: MakeAny, addresses: list[str]) -> Iterator[Trial]:
        """From the container that asks to containers of the other hosts, and what can be read of it on the way."""
        endpoint = self.session.store.get(self._endpoint_of(self._name(_CLIENT)), self.session.deadline)
        own = str((endpoint.value.get("spec") or {}).get("node")) if endpoint is not None else ""
        hosts = read_hosts(self.session, own, self.wanted)
        yield from try_hosts(hosts, make, {ip_address(address).version for address in addresses})
        encrypted = read_encrypted(self.session)
        if encrypted is None or not hosts:
            return
        said = agent_status.read_status(directories.run_dir(self.environ)).get("encryption")
        yield from HostWires(encrypted, own, said, make, addresses).prove(self.session, hosts)

    def _attach(self, name: str, undo: ExitStack) -> tuple[MakeInside, list[str]]:
        """A namespace in the network: what makes sockets in it, and its addresses."""
        container = self._container_of(name)
        undo.callback(self._detach, container)
        named_netns.ensure_named(name)
        fd = netns.open_netns(container.netns)
        undo.callback(os.close, fd)
        addresses = container.add(self.session.deadline)

        def make(family: int, kind: int, protocol: int = 0) -> socket:
            with netns.inside(fd):
                return socket(family, kind, protocol)

        return make, addresses

    def _detach(self, container: Attached) -> None:
        """As a runtime does it: the network first, then the namespace."""
        with undisturbed():
            try:
                container.delete(Deadline.after(_REMOVAL_S))
            except CalicoError as e:
                self.note(f"Something of the check may be left: {e}")
            try:
                named_netns.remove_named(container.container)
            except CalicoError as e:
                self.note(f"Something of the check may be left: {e}")

    def _serve(self, make: MakeSocket, undo: ExitStack) -> None:
        listeners = open_listeners(make)
        stop = threading.Event()
        answering = threading.Thread(target=answer, args=(listeners, stop), daemon=True)

        def end() -> None:
            stop.set()
            answering.join()
            for listener in listeners:
                listener.close()

        undo.callback(end)
        answering.start()

    # -- policy -------------------------------------------------------------------------------------------------------

    def _why_unpoliced(self) -> str:
        fields = agent_status.read_status(directories.run_dir(self.environ))
        not_live = agent_status.why_not_live(fields, agent_status.since_boot())
        return f"calico-node does not run on this host: {not_live}" if not_live else ""

    def _forbid(self, undo: ExitStack) -> None:
        """Label the endpoint of the container that answers, and write a policy for that label."""
        endpoint = self._endpoint_of(self._name(_SERVER))

        def labelled(document: Document) -> dict[str, object]:
            metadata = dict(document["metadata"])
            metadata["labels"] = {**(metadata.get("labels") or {}), objects.LABEL: self.token}
            return {**document, "metadata": metadata}

        operations.modify(self.session, endpoint, labelled)
        key = ResourceKey("GlobalNetworkPolicy", self.host + self.token)
        spec = objects.calico_policy(f"{objects.LABEL} == '{self.token}'")
        document = {"apiVersion": API_VERSION, "kind": key.kind, "metadata": {"name": key.name}, "spec": spec}
        undo.callback(self._remove_policy, key)
        operations.create(self.session, key, document)

    def _endpoint_of(self, container: str) -> ResourceKey:
        for item in self.session.store.list(ResourceList("WorkloadEndpoint"), self.session.deadline).items:
            if (item.value.get("spec") or {}).get("containerID") == container and isinstance(item.key, ResourceKey):
                return item.key
        raise CommandFailed(
            f"cannot check policy: the datastore that calicoctl uses has no endpoint of {container}; does the CNI "
            f"network {self.network.name} use another one?"
        )

    def _remove_policy(self, key: ResourceKey) -> None:
        with undisturbed():
            try:
                operations.delete(replace(self.session, deadline=Deadline.after(_REMOVAL_S)), key)
            except CalicoError as e:
                self.note(f"Something of the check may be left: {e}")

    # -- what killed checks left --------------------------------------------------------------------------------------

    def _remove_forgotten(self) -> None:
        for name in named_netns.list_named(CHECK_PREFIX):
            if _is_forgotten(name.removeprefix(CHECK_PREFIX)):
                self._detach(self._container_of(name))
        for item in self.session.store.list(ResourceList("GlobalNetworkPolicy"), self.session.deadline).items:
            assert isinstance(item.key, ResourceKey)
            if item.key.name.startswith(self.host) and _is_forgotten(item.key.name.removeprefix(self.host)):
                self._remove_policy(item.key)


def _is_forgotten(rest: str) -> bool:
    """Whether the process that ``rest``, the end of a name of ours, begins with is gone."""
    pid = rest.partition("-")[0]
    return pid.isdecimal() and not os.path.exists(f"/proc/{pid}")
