"""``calico-ipam -upgrade``: the addresses that host-local assigned on this node become calico-ipam's.

Rule: an address is allocated before host-local's file for it is removed, so a run that dies in between loses nothing;
the next run continues it. Meanwhile no pod is set up with the old configuration: the plugin's executable is removed
(the installer, which runs next, puts it back) and host-local's lock is held.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.directories import CNI_BIN_DIR
from cni_calico.errors import AddressInUse, AddressOutsidePools, CalicoError, InvalidConfig, KernelError
from cni_calico.kernel.lock import file_lock
from cni_calico.log import Log
from cni_calico.model.documents import codec
from cni_calico.model.keys import ResourceKey, endpoints_of_node
from cni_calico.model.resources import Address
from cni_calico.plugin.call.ready import require_not_locked
from cni_calico.plugin.call.services import CallDatastore, Services
from cni_calico.plugin.ipam.hostlocal import (
    LOCK,
    Reservation,
    is_bookkeeping,
    other_ipam,
    parse_reservation,
    parse_routes,
    plan_migration,
)

NETWORK = "k8s-pod-network"
NETWORKS = "/var/lib/cni/networks"
PLUGIN = f"/host{CNI_BIN_DIR}/calico"
TOTAL_S = 600.0
LOCK_S = 60.0
IN_FLIGHT_S = 10.0  # for pods that were being set up when the plugin was removed
LOOK_S = 0.5


@dataclass(slots=True)
class Upgrade:
    """``root`` is put in front of every path, for running it outside of its container; ``kubernetes`` is None if there
    is none.
    """

    services: Services
    datastore: CallDatastore
    node: str
    network: str
    root: str
    kubernetes: KubernetesStore | None
    log: Log
    deadline: Deadline
    wait_s: float = IN_FLIGHT_S
    migrated: int = 0
    dropped: int = 0
    conflicts: list[str] = field(default_factory=list)

    @property
    def directory(self) -> str:
        return f"{self.root}{NETWORKS}/{self.network}"

    def run(self) -> None:
        """Raises CalicoError; repeating it continues where it ended."""
        if not os.path.isdir(self.directory):
            self.log.info(f"{self.directory} does not exist: nothing to migrate")
            return
        require_not_locked(self.datastore, self.deadline)
        if any(not is_bookkeeping(name) for name in os.listdir(self.directory)):
            self._drop_plugin()
        with file_lock(f"{self.directory}/{LOCK}", self.deadline.sooner(LOCK_S)):
            self._migrate()
        self.log.info(f"migrated {self.migrated} addresses to calico-ipam, dropped {self.dropped} that nothing uses")

    # -- what is there ------------------------------------------------------------------------------------------------

    def _drop_plugin(self) -> None:
        self.services.files.remove(f"{self.root}{PLUGIN}")
        self.log.info(f"removed {PLUGIN}: no pod is set up before the installer has put it back")

    def _reservations(self) -> list[Reservation]:
        found = []
        for name in sorted(os.listdir(self.directory)):
            path = f"{self.directory}/{name}"
            if os.path.isfile(path):
                found.append(parse_reservation(name, self.services.files.read_bytes(path)))
        return [reservation for reservation in found if reservation is not None]

    def _pods(self) -> dict[Address, tuple[str, str]] | None:
        """(namespace, name) of this node's pods by address."""
        if self.kubernetes is None:
            return None
        pods: dict[Address, tuple[str, str]] = {}
        for item in self.kubernetes.list(endpoints_of_node(self.node), self.deadline).items:
            assert isinstance(item.key, ResourceKey)
            endpoint = codec.decode_endpoint(item.key, item.value)
            for network in endpoint.ip_networks:
                pods[network.network_address] = (item.key.namespace, endpoint.pod)
        return pods

    def _routed(self) -> frozenset[Address]:
        texts = []
        for name in ("route", "ipv6_route"):
            try:
                texts.append(self.services.files.read_text(f"/proc/net/{name}"))
            except OSError:
                texts.append("")
        return parse_routes(*texts)

    def _settled_pods(self, reservations: Sequence[Reservation]) -> dict[Address, tuple[str, str]] | None:
        """Wait until each address has its pod or has had enough time to get one; returns the pods."""
        until = self.deadline.sooner(self.wait_s)
        while True:
            pods = self._pods()
            if pods is None or until.expired() or all(r.address in pods for r in reservations):
                return pods
            import threading

            threading.Event().wait(min(LOOK_S, until.remaining_s()))

    # -- what becomes of it -------------------------------------------------------------------------------------------

    def _migrate(self) -> None:
        reservations = self._reservations()
        if reservations:
            self._claim_tunnel()
        pods, routed = self._settled_pods(reservations), self._routed()
        for reservation in reservations:
            migration = plan_migration(reservation, self.network, self.node, pods, routed)
            if migration is None:
                self.log.info(f"{reservation.address} is not used any more: no pod of this node has it")
                self.dropped += 1
            else:
                self._allocate(reservation.address, migration.handle_id, migration.attributes)
                self.migrated += 1
            self.services.files.remove(f"{self.directory}/{reservation.file}")
        self._remove_directory()

    def _allocate(self, address: Address, handle_id: str, attributes: Mapping[str, str]) -> None:
        """Allocate an address. If it was assigned to somebody else meanwhile, its pod has to be created again."""
        allocator = self.datastore.allocator
        try:
            allocator.assign_address(address, handle_id, attributes, self.node, self.deadline)
        except AddressInUse as e:
            who = f"pod {attributes['namespace']}/{attributes['pod']}" if "pod" in attributes else f"handle {handle_id}"
            self.log.error(f"{who} and another owner both have the address {address}: delete one of them ({e.details})")
            self.conflicts.append(str(address))

    def _claim_tunnel(self) -> None:
        """Claim the IPIP tunnel's address (with host-local the first of the node's podCIDR); calico-node publishes it
        later.
        """
        address = self._tunnel_address()
        if address is None:
            return
        attributes = {"node": self.node, "type": "ipipTunnelAddress"}
        try:
            allocator = self.datastore.allocator
            allocator.assign_address(address, f"ipip-tunnel-addr-{self.node}", attributes, self.node, self.deadline)
        except (AddressInUse, AddressOutsidePools) as e:
            self.log.warning(f"the tunnel address {address} is not kept, calico-node takes another one: {e}")

    def _tunnel_address(self) -> Address | None:
        key = ResourceKey("Node", self.node)
        found = self.datastore.store.get(key, self.deadline)
        told = None if found is None else codec.decode_node(key, found.value).ipv4_ipip_tunnel
        if told is not None or self.kubernetes is None:
            return told
        from cni_calico.datastore.kubernetes.objects import KubernetesObjects

        node = KubernetesObjects(self.kubernetes.api).node(self.node, self.deadline)
        for text in ((node or {}).get("spec") or {}).get("podCIDRs") or ():
            cidr = ip_network(text, strict=False)
            if cidr.version == 4:
                return cidr.network_address + 1
        return None

    def _remove_directory(self) -> None:
        for name in sorted(os.listdir(self.directory)):
            if is_bookkeeping(name) and name != LOCK:
                self.services.files.remove(f"{self.directory}/{name}")
        if set(os.listdir(self.directory)) - {LOCK}:
            self.log.warning(f"{self.directory} is left: there are files in it that are not host-local's")
            return
        self.services.files.remove(f"{self.directory}/{LOCK}")
        try:
            os.rmdir(self.directory)
        except OSError as e:
            self.log.warning(f"cannot remove {self.directory}: {e.strerror}")


def open_kubernetes(datastore: CallDatastore, environ: Mapping[str, str]) -> KubernetesStore | None:
    """Kubernetes' own objects; None outside of Kubernetes."""
    config = datastore.config
    if config.type != "kubernetes" and not config.kubernetes.kubeconfig and not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    from cni_calico.datastore.kubernetes.store import KubernetesStore

    store = datastore.store if config.type == "kubernetes" else None
    return store if isinstance(store, KubernetesStore) else KubernetesStore(config.kubernetes)


def run_upgrade(environ: Mapping[str, str]) -> int:
    """The exit status; progress is logged to stderr. Repeat it until the status is 0."""
    log = Log("info", context="upgrade: ")
    services = Services(environ)
    try:
        node = environ.get("KUBERNETES_NODE_NAME", "").strip()
        if not node:
            raise InvalidConfig(
                "KUBERNETES_NODE_NAME not specified, refusing to migrate",
                details="set it to the node's name (spec.nodeName): its addresses are allocated to that node",
            )
        other = other_ipam(environ.get("CNI_NETWORK_CONFIG", ""))
        if other:
            log.info(f"the network configuration uses {other}: nothing is migrated")
            return 0
        datastore = services.datastore(parse_datastore(JsonFields({}), environ))
        kubernetes = open_kubernetes(datastore, environ)
        network, root = environ.get("CNI_NETWORK_NAME") or NETWORK, environ.get("CALICO_INSTALL_ROOT", "")
        Upgrade(services, datastore, node, network, root, kubernetes, log, Deadline.after(TOTAL_S)).run()
    except OSError as e:
        return _fail(log, KernelError(f"cannot migrate host-local's addresses: {e}"))
    except CalicoError as e:
        return _fail(log, e)
    finally:
        services.close()
    return 0


def _fail(log: Log, error: CalicoError) -> int:
    log.error(error.message + (f" ({error.details})" if error.details else ""))
    return 1
