"""One call under way: its request, configuration, services and deadline.

Rule: a verb and its steps get this one value; their results are returned, never stored here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.datastore.interface import Datastore
from cni_calico.datastore.kubernetes.objects import KubernetesObjects
from cni_calico.deadline import Deadline
from cni_calico.ipam.allocator import Allocator
from cni_calico.log import Log
from cni_calico.plugin.call.node_name import read_nodename
from cni_calico.plugin.call.services import CallDatastore, Services


@dataclass(frozen=True, slots=True)
class Task:
    """A call, its parsed configuration, and the services of the process that serves it."""

    call: Call
    conf: NetConf
    services: Services
    datastore: CallDatastore
    deadline: Deadline

    @property
    def store(self) -> Datastore:
        """The datastore as this process knows it, possibly from memory. Raises InvalidConfig, DatastoreError."""
        return self.datastore.store

    @property
    def fresh_store(self) -> Datastore:
        """The datastore itself, bypassing memory."""
        return self.datastore.fresh_store

    @property
    def allocator(self) -> Allocator:
        return self.datastore.allocator

    @property
    def kubernetes(self) -> KubernetesObjects:
        return self.datastore.kubernetes

    @property
    def log(self) -> Log:
        return self.services.log

    def until(self, deadline: Deadline) -> Task:
        """The same call with another deadline."""
        return replace(self, deadline=deadline)

    def read_nodename(self, *, wait_s: float = 0.0, for_ipam: bool = False) -> str:
        """The name of this node, as ``plugin.call.node_name`` determines it. Raises NodeNotSetUp, InvalidConfig."""
        return read_nodename(self.conf, self.services.files, self.deadline, wait_s=wait_s, for_ipam=for_ipam)
