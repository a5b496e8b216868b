"""``calico-docker`` as a process: two sockets, the clean-up, the gate, and Docker's events.

Rule: nothing is answered before what another boot has left is gone, or five seconds have passed; whoever calls in the
meantime waits in the socket.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.daemon.guarded import guarded_thread
from cni_calico.daemon.notify import READY, STOPPING, tell_systemd
from cni_calico.daemon.stopping import Stopping
from cni_calico.datastore.connect import connect_soon
from cni_calico.directories import nodename_file
from cni_calico.docker.addresses import AddressDriver
from cni_calico.docker.cleanup import DockerCleanup
from cni_calico.docker.context import DockerHost
from cni_calico.docker.descriptors import DescriptorStore, adopt_descriptors
from cni_calico.docker.engine import DockerEngine
from cni_calico.docker.gate import PolicyGate
from cni_calico.docker.networks import NetworkDriver
from cni_calico.docker.ports import PortPublisher
from cni_calico.docker.repair import TableRepair
from cni_calico.docker.serving import DockerCall, DriverServer, open_listener
from cni_calico.docker.settings import parse_docker_settings, read_docker_node
from cni_calico.docker.state import DockerState
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.log import LEVELS, Log, wants_json
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.identity.boot import read_boot_id

NETWORK_SOCKET, IPAM_SOCKET = "calico", "calico-ipam"
ACTIVATE = "/Plugin.Activate"
_LOOK_S = 0.5


def network_calls(driver: NetworkDriver) -> dict[str, DockerCall]:
    """The calls on ``calico.sock``, by path."""
    nothing = driver.nothing_to_do
    named: dict[str, DockerCall] = {
        "GetCapabilities": driver.get_capabilities,
        "GwAllocCheck": driver.gw_alloc_check,
        "CreateNetwork": driver.create_network,
        "DeleteNetwork": driver.delete_network,
        "CreateEndpoint": driver.create_endpoint,
        "DeleteEndpoint": driver.delete_endpoint,
        "EndpointOperInfo": driver.endpoint_oper_info,
        "Join": driver.join,
        "Leave": driver.leave,
        "ProgramExternalConnectivity": driver.program_external_connectivity,
        "RevokeExternalConnectivity": driver.revoke_external_connectivity,
        "DiscoverNew": nothing,
        "DiscoverDelete": nothing,
        "AllocateNetwork": nothing,
        "FreeNetwork": nothing,
    }
    calls = {f"/NetworkDriver.{name}": call for name, call in named.items()}
    return {ACTIVATE: driver.activate, **calls}


def ipam_calls(driver: AddressDriver) -> dict[str, DockerCall]:
    """The calls on ``calico-ipam.sock``, by path."""
    named: dict[str, DockerCall] = {
        "GetCapabilities": driver.get_capabilities,
        "GetDefaultAddressSpaces": driver.get_default_address_spaces,
        "RequestPool": driver.request_pool,
        "ReleasePool": driver.release_pool,
        "RequestAddress": driver.request_address,
        "ReleaseAddress": driver.release_address,
    }
    return {
        ACTIVATE: lambda _: {"Implements": ["IpamDriver"]},
        **{f"/IpamDriver.{name}": named[name] for name in named},
    }


BARE = frozenset(
    (ACTIVATE, "/NetworkDriver.GetCapabilities", "/IpamDriver.GetCapabilities", "/IpamDriver.GetDefaultAddressSpaces")
)


class DockerProcess:
    """Raises InvalidConfig, KernelError, DatastoreError."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        settings = parse_docker_settings(environ)
        self.log = Log(settings.log_level, as_json=wants_json(environ))
        self.log.threshold = LEVELS[settings.log_level]
        self._stopping = Stopping()
        self._services = Services(environ)
        config = parse_datastore(JsonFields({}), environ)
        if config.type == "kubernetes":
            raise InvalidConfig(
                "cannot start: Docker's containers cannot be recorded in Kubernetes",
                details="set DATASTORE_TYPE=local for this host alone, or DATASTORE_TYPE=etcdv3 and ETCD_ENDPOINTS",
            )
        files, run_dir = self._services.files, self._services.run_dir
        self._gate = PolicyGate(files, run_dir, nodename_file(environ), self.log)
        self._engine = DockerEngine(settings.engine_socket, self.log)
        self._descriptors = DescriptorStore(environ)
        self.host = DockerHost(
            settings=settings,
            node=read_docker_node(environ, files),
            boot=read_boot_id(),
            datastore=self._services.datastore(config),
            state=DockerState(files, self._services.state_dir, self.log),
            engine=self._engine,
            gate=self._gate,
            ports=PortPublisher(self.log, self._descriptors),
            services=self._services,
            log=self.log,
            now=time.time,
        )
        self._cleanup = DockerCleanup(self.host)
        self.host.wake = self._cleanup.wake
        self._gate.opened = self._note_opened
        self._engine.opened, self._engine.renamed = self._cleanup.docker_serves, self._cleanup.renamed
        self._failed = False

    def run(self) -> int:
        """Serve until a signal; returns the exit status."""
        self._stopping.on_signals(signal.SIGTERM, signal.SIGINT)
        found = adopt_descriptors(self._environ)
        adopted = found.listeners
        self._descriptors.use(found.stored)
        directory = self.host.settings.plugin_dir
        listeners = {
            name: adopted[name] if name in adopted else open_listener(directory, name)
            for name in (NETWORK_SOCKET, IPAM_SOCKET)
        }
        self.host.state.read()
        connect_soon(self.host.datastore.store)
        addresses = AddressDriver(self.host)  # it reads what another boot has left
        self._cleanup.begin()
        calls = {
            NETWORK_SOCKET: network_calls(NetworkDriver(self.host)),
            IPAM_SOCKET: ipam_calls(addresses),
        }
        host = self.host
        servers = [
            DriverServer(listeners[name], calls[name], BARE, host.turns, host.afterwards, self.log)
            for name in listeners
        ]
        for name, work in (
            *((f"calls-{at}", server.run) for at, server in enumerate(servers)),
            ("clean-up", self._cleanup.run),
            ("gate", self._gate.run),
            ("repair", TableRepair(self._gate, self.host.ports, self.log).run),
            ("events", self._engine.follow),
        ):
            self._start(name, work)
        self.log.info(f"serving Docker as node {self.host.node}")
        tell_systemd(READY, self._environ)
        while not self._stopping.wait(_LOOK_S):
            pass
        tell_systemd(STOPPING, self._environ)
        for name, listener in listeners.items():
            listener.close()
            if name not in adopted:
                _unlink(f"{directory}/{name}.sock")
        return 1 if self._failed else 0

    def _note_opened(self, endpoint: str) -> None:
        try:
            self.host.state.endpoints.change(endpoint, waits=False)
        except CalicoError as e:  # it is open; after a restart it is closed until that is found out again
            self.log.error(f"endpoint {endpoint[:12]}: {e}")

    def _start(self, name: str, work: Callable[[threading.Event], None]) -> None:
        guarded_thread(name, lambda: work(self._stopping), self.log, self._fail).start()

    def _fail(self) -> None:
        """A part has ended by a defect: the service manager starts us again."""
        self._failed = True
        self._stopping.set()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
