"""Cleans up what Docker has not told: after a reboot, a crash of ours or Docker's, an outage of the datastore.

Rule: what was made in another boot of this host is over. Of this boot something is over if Docker, asked while its API
serves, does not know it, and it is older than a minute; nothing is removed because Docker does not answer. What is owed
is tried again until it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from ipaddress import ip_address

from cni_calico.backoff import Backoff
from cni_calico.daemon.said import Said
from cni_calico.deadline import Deadline
from cni_calico.docker.containers import NetworkMembers, read_docker_root, read_members, read_network_ids, read_subnets
from cni_calico.docker.context import DockerHost
from cni_calico.docker.former import addresses_of, former_endpoints, owe_endpoint
from cni_calico.docker.identify import identify, learn_network, rename
from cni_calico.docker.links import ensure_gateway, is_attached
from cni_calico.docker.pools import overlaps, read_pools
from cni_calico.docker.removal import owe, release_held, take_down
from cni_calico.docker.state import JOINED, DockerEndpoint, HeldAddress
from cni_calico.errors import CalicoError, TryAgain
from cni_calico.plugin.network.host import Host

_Paying = Callable[[DockerHost, str, Deadline], None]

NETWORK_DRIVER, BRIDGE_DRIVER = "calico", "bridge"
LOOK_S, OLD_S = 300.0, 60.0
FIRST_S = 5.0  # for what another boot has left, before the first call is answered
_STEP_S, _RETRY_S, _RETRY_MAX_S = 5.0, 1.0, 30.0


class DockerCleanup:
    """``wake`` ends the wait: something is owed, or Docker's API has begun to serve."""

    def __init__(self, host: DockerHost) -> None:
        self._host = host
        self._wake = threading.Event()
        self._retry = Backoff(_RETRY_S, _RETRY_MAX_S)
        self._said = Said(host.log)
        self._asks = False

    def wake(self) -> None:
        self._wake.set()

    def docker_serves(self) -> None:
        """What Docker does not know is looked for now."""
        self._asks = True
        self._wake.set()

    def begin(self) -> None:
        """What another boot has left is owed, and goes as far as that is possible soon; what waits is closed."""
        host = self._host
        for endpoint in host.state.endpoints.all():
            if endpoint.boot != host.boot:
                host.state.endpoints.change(endpoint.id, owed=True)
        for held in host.state.addresses.all():
            if held.boot != host.boot or not held.address:
                host.state.addresses.change(held.id, owed=True)
        self._owe_lost()
        waiting = {
            each.id: (each.mac, [ip_address(address) for address in each.addresses])
            for each in host.state.endpoints.all()
            if each.waits and not each.owed
        }
        host.gate.close_all(waiting)
        published = [each for each in host.state.endpoints.all() if each.ports and not each.owed]
        try:
            host.ports.restore(published, Deadline.after(FIRST_S))
        except CalicoError as e:  # rather no ports than no driver
            host.log.error(f"ports of containers are not published: {e}")
        self._pay(Deadline.after(FIRST_S))

    def _owe_lost(self) -> None:
        """Addresses whose files a crash of the machine may have taken with it. Raises KernelError."""
        host = self._host
        for id in host.state.handles.of_another_boot(host.boot):
            if host.state.addresses.get(id) is None:
                host.state.addresses.put(HeldAddress(id, host.boot, made_s=host.now(), owed=True))

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            done = self._look()
            pause = LOOK_S if done else self._retry.next()
            if done:
                self._retry.reset()
            while pause > 0 and not stopping.is_set() and not self._wake.is_set():
                self._wake.wait(min(pause, 0.5))
                pause -= 0.5
            self._wake.clear()

    def _look(self) -> bool:
        """Whether nothing is left to be done soon."""
        asks, self._asks = self._asks, False
        failures = [] if self._pay(None) else ["something is still to be released"]
        if any(each.step == JOINED for each in self._host.state.endpoints.all()):
            try:
                with Host() as kernel:
                    ensure_gateway(kernel, Deadline.after(_STEP_S))
            except CalicoError as e:
                failures.append(str(e))
        if asks or self._host.engine.is_open:
            try:
                self._compare()
            except CalicoError as e:
                failures.append(str(e))
        self._said.say("clean-up", failures)
        return not failures

    def _pay(self, limit: Deadline | None) -> bool:
        """Do what is owed; whether nothing is left."""
        host, done = self._host, True
        owed = [(each.id, take_down) for each in host.state.endpoints.all() if each.owed]
        for endpoint, act in owed:
            done = self._try(endpoint, act, limit) and done
        for held in host.state.addresses.all():
            if held.owed and host.state.endpoint_with(held.address) is None:
                done = self._try(held.id, release_held, limit) and done
        return done

    def _try(self, id: str, act: _Paying, limit: Deadline | None) -> bool:
        if limit is not None and limit.expired():
            return False
        try:
            act(self._host, id, limit or Deadline.after(_STEP_S))
        except CalicoError as e:
            self._host.log.debug(f"{id[:12]}: {e}")
            return False
        return True

    def _compare(self) -> None:
        """With what Docker has. Raises CalicoError."""
        host = self._host
        host.docker_root = read_docker_root(host.engine, Deadline.after(_STEP_S))
        members: dict[str, NetworkMembers] = {}
        docker_s = read_network_ids(host.engine, NETWORK_DRIVER, Deadline.after(_STEP_S))
        for network in {
            *docker_s,
            *(each.network for each in host.state.endpoints.all() if each.network),
            *(each.id for each in host.state.networks.all()),
        }:
            found = members[network] = read_members(host.engine, network, Deadline.after(_STEP_S))
            if found.found:
                learn_network(host, network, found)
        self._owe_former({endpoint for each in members.values() for endpoint in each.endpoints})
        unknown: list[str] = []
        for endpoint in [each for each in host.state.endpoints.all() if not each.owed]:
            if self._is_over(endpoint, members.get(endpoint.network)):
                host.log.warning(f"endpoint {endpoint.id[:12]} is removed: Docker does not have it any more")
                owe(host, endpoint)
                take_down(host, endpoint.id, Deadline.after(_STEP_S))
            elif endpoint.known:
                self._compare_name(endpoint, members.get(endpoint.network, NetworkMembers()))
            elif not identify(host, endpoint.id, Deadline.after(_STEP_S)):
                unknown.append(endpoint.id[:12])
        self._owe_unused()
        for network in [each.id for each in host.state.networks.all()]:
            if (
                network in members
                and not members[network].found
                and not any(each.network == network for each in host.state.endpoints.all())
            ):
                self._forget_network(network)
        bridges = read_subnets(host.engine, BRIDGE_DRIVER, Deadline.after(_STEP_S))
        self._said.say("bridges", overlaps(read_pools(host, Deadline.after(_STEP_S)), bridges))
        if unknown:
            raise TryAgain(f"cannot find out whose these endpoints are, so they are closed: {', '.join(unknown)}")

    def _is_over(self, endpoint: DockerEndpoint, members: NetworkMembers | None) -> bool:
        old_s = OLD_S + self._host.settings.policy_wait_s  # Join waits so long
        if members is None or endpoint.owed or self._host.now() - endpoint.made_s < old_s:
            return False
        if not members.found or endpoint.id not in members.endpoints:
            return True
        with Host() as kernel:  # Docker has put the container's end back, and Leave got lost
            return endpoint.step == JOINED and not is_attached(kernel, endpoint.id, Deadline.after(_STEP_S))

    def _compare_name(self, endpoint: DockerEndpoint, members: NetworkMembers) -> None:
        """It may have got another one while nobody listened to Docker's events."""
        if members.endpoints.get(endpoint.id, endpoint.name) != endpoint.name:
            self.renamed(endpoint.container)

    def _owe_former(self, known: Collection[str]) -> None:
        """Endpoints that upstream's plugin has made, and Docker does not have any more: of before a reboot, say."""
        host = self._host
        for record in list(former_endpoints(host, Deadline.after(_STEP_S))):
            if record.endpoint not in known:
                host.log.warning(f"endpoint {record.endpoint[:12]} is removed: Docker does not have it any more")
                owe_endpoint(host, record.endpoint, addresses=addresses_of(record))
                take_down(host, record.endpoint, Deadline.after(_STEP_S))

    def _owe_unused(self) -> None:
        """Addresses that no endpoint of ours has got: dockerd was killed, or another network driver took them."""
        host = self._host
        for held in host.state.addresses.all():
            is_used = host.state.endpoint_with(held.address) is not None
            if held.owed or is_used or host.now() - held.made_s < OLD_S:
                continue
            host.log.warning(
                f"{held.address} is released: no network of ours uses it; networks with --ipam-driver calico-ipam need "
                "--driver calico, too"
            )
            host.state.addresses.change(held.id, owed=True)
            release_held(host, held.id, Deadline.after(_STEP_S))

    def _forget_network(self, network: str) -> None:
        """One that is being made is not known to Docker yet, either: only one that had a name, or is old."""
        held = self._host.state.networks.get(network)
        if held is not None and (held.name or self._host.now() - held.made_s > OLD_S):
            self._host.state.networks.remove(network)

    def renamed(self, container: str) -> None:
        """A container has another name."""
        try:
            rename(self._host, container, Deadline.after(_STEP_S))
        except CalicoError as e:
            self._host.log.warning(f"cannot write the new name of container {container[:12]}: {e}")
