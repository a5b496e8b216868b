"""What every part of the driver works with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cni_calico.deadline import Deadline
from cni_calico.docker.afterwards import Afterwards
from cni_calico.docker.containers import DOCKER_ROOT
from cni_calico.docker.engine import DockerEngine
from cni_calico.docker.gate import PolicyGate
from cni_calico.docker.ports import PortPublisher
from cni_calico.docker.serving import CALLS
from cni_calico.docker.settings import DockerSettings
from cni_calico.docker.state import DockerState, EntryLocks
from cni_calico.log import Log
from cni_calico.plugin.call.services import CallDatastore, Services


@dataclass(slots=True)
class DockerHost:
    """``boot``: of this host. ``now``: Unix time. ``docker_root``: where Docker's own files are.
    ``turns``: of calls that run at once. ``afterwards``: what a call does once it has answered.
    ``later_until``: until then what is to be removed is left to the clean-up, because the datastore does not answer.
    """

    settings: DockerSettings
    node: str
    boot: str
    datastore: CallDatastore
    state: DockerState
    engine: DockerEngine
    gate: PolicyGate
    ports: PortPublisher
    services: Services
    log: Log
    now: Callable[[], float]
    locks: EntryLocks = field(default_factory=EntryLocks)
    turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(CALLS))
    afterwards: Afterwards = field(default_factory=Afterwards)
    docker_root: str = DOCKER_ROOT
    later_until: float = 0.0  # monotonic
    wake: Callable[[], None] = lambda: None  # the clean-up


CALL_S = 4.5  # dockerd waits for an answer for ever, and people for five seconds


START_S = 20.0  # of what is left once a container has an address: on a busy host a late start is better than none


def call_deadline() -> Deadline:
    return Deadline.after(CALL_S)


def start_deadline() -> Deadline:
    return Deadline.after(START_S)
