"""Writes the record of an endpoint that is being joined, or that could not be identified then.

Rule: nothing here waits for dockerd for longer than a question takes. Without its API the namespace tells who the
container is, which before Docker 26 exists only after Join has been answered.
"""

from __future__ import annotations

from dataclasses import replace

from cni_calico.deadline import Deadline
from cni_calico.docker.containers import (
    DockerContainer,
    NetworkMembers,
    find_container,
    read_container,
    read_container_of,
    read_members,
)
from cni_calico.docker.context import DockerHost
from cni_calico.docker.records import ensure_record
from cni_calico.docker.state import DockerEndpoint, DockerNetwork
from cni_calico.errors import TryAgain

_ASK_S = 2.0


def find_owner(host: DockerHost, endpoint: DockerEndpoint, deadline: Deadline) -> DockerContainer | None:
    """The container of an endpoint; None if that cannot be known now."""
    if host.engine.is_open:
        try:
            members = read_members(host.engine, endpoint.network, deadline.sooner(_ASK_S))
            learn_network(host, endpoint.network, members)
            name = members.endpoints.get(endpoint.id, "")
            if name and (found := read_container(host.engine, name, deadline.sooner(_ASK_S))) is not None:
                return found
        except TryAgain as e:
            host.log.debug(f"endpoint {endpoint.id[:12]}: {e}")
    return find_container(endpoint.sandbox, host.docker_root) if endpoint.sandbox else None


def learn_network(host: DockerHost, network: str, members: NetworkMembers) -> None:
    """Docker does not tell a network's name when it makes it, and of one that upstream's plugin has made it has told us
    nothing. Raises KernelError.
    """
    held = host.state.networks.get(network)
    if not members.name or (held is not None and held.name == members.name):
        return
    if held is not None:
        host.state.networks.change(network, name=members.name)
        return
    mtu = members.options.get("mtu", "")
    known = DockerNetwork(network, int(mtu) if mtu.isdecimal() and len(mtu) < 6 else 0, name=members.name)
    host.state.networks.put(replace(known, ingress=members.options.get("profile_ingress", ""), made_s=host.now()))


def network_name(host: DockerHost, network: str) -> str:
    """What people call the network; nothing if it is not known."""
    held = host.state.networks.get(network)
    return held.name if held is not None else ""


def record_endpoint(host: DockerHost, endpoint: DockerEndpoint, owner: DockerContainer, deadline: Deadline) -> None:
    """Write its record with what is known of its container, under the endpoint's lock. Raises CalicoError."""
    network = network_name(host, endpoint.network)
    left_out = ensure_record(host, endpoint, owner, network, deadline)
    host.state.endpoints.change(
        endpoint.id, container=owner.id, name=owner.identity.name, known=bool(network), left_out=list(left_out)
    )


def identify(host: DockerHost, endpoint_id: str, deadline: Deadline) -> bool:
    """Complete the record of an endpoint whose container was not known; whether it is complete. Raises CalicoError."""
    with host.locks.hold(endpoint_id, deadline):
        endpoint = host.state.endpoints.get(endpoint_id)
        if endpoint is None or endpoint.known or endpoint.owed or not endpoint.sandbox:
            return True
        owner = find_owner(host, endpoint, deadline)
        if owner is None:
            return False
        record_endpoint(host, endpoint, owner, deadline)
        found = host.state.endpoints.get(endpoint_id)
        return found is None or found.known


def rename(host: DockerHost, container: str, deadline: Deadline) -> None:
    """Write the new name of a container into its records. Raises CalicoError."""
    for endpoint in host.state.endpoints.all():
        if endpoint.container == container and not endpoint.owed:
            owner = read_container_of(host.engine, container, deadline)
            with host.locks.hold(endpoint.id, deadline):
                now = host.state.endpoints.get(endpoint.id)
                if owner is not None and now is not None:
                    record_endpoint(host, now, owner, deadline)
