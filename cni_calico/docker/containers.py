"""Who a container of Docker is: asked of its API, or found by the container's network namespace and Docker's files.

Rule: the API is asked only for what does not wait for the container's lock: the network, which lists an endpoint that
is being joined by its container's name, and the list of containers of that name. Before the API serves, the namespace's
first process names the container in its cgroup, and Docker's own file of it has name and labels. What cannot be found
is not guessed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any
from urllib.parse import quote

from cni_calico.bounded import CONFIG_BYTES, OutOfBounds, read_bytes
from cni_calico.deadline import Deadline
from cni_calico.docker.engine import DockerEngine
from cni_calico.errors import TryAgain
from cni_calico.model.identity import ContainerIdentity
from cni_calico.model.resources import Network

DOCKER_ROOT = "/var/lib/docker"
_CONTAINER_ID = re.compile(r"([0-9a-f]{64})(?:\.scope)?$")
_CGROUP_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class NetworkMembers:
    """``endpoints``: container name by endpoint ID. ``found``: Docker knows the network.
    ``options``: its ``-o``.
    """

    name: str = ""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    found: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DockerContainer:
    id: str
    identity: ContainerIdentity


def read_members(engine: DockerEngine, network: str, deadline: Deadline) -> NetworkMembers:
    """Raises TryAgain."""
    answer = engine.ask(f"/networks/{network}", deadline)
    if answer is None:
        return NetworkMembers()
    containers = _object(_object(answer).get("Containers"))
    found = {
        str(_object(each).get("EndpointID") or key.removeprefix("ep-")): str(_object(each).get("Name", ""))
        for key, each in containers.items()
    }
    return NetworkMembers(
        str(_object(answer).get("Name", "")), found, found=True, options=_texts(_object(answer).get("Options"))
    )


def read_network_ids(engine: DockerEngine, driver: str, deadline: Deadline) -> list[str]:
    """The IDs of a driver's networks. Raises TryAgain."""
    return [str(each.get("Id", "")) for each in _networks(engine, driver, deadline)]


def _networks(engine: DockerEngine, driver: str, deadline: Deadline) -> list[Mapping[str, Any]]:
    answer = engine.ask(f"/networks?filters={quote(json.dumps({'driver': [driver]}))}", deadline)
    if not isinstance(answer, list):
        raise TryAgain("cannot ask Docker: its answer is no list of networks")
    return list(map(_object, answer))


def read_subnets(engine: DockerEngine, driver: str, deadline: Deadline) -> Mapping[str, list[Network]]:
    """The subnets of a driver's networks, by the networks' names. Raises TryAgain."""
    return {
        str(each.get("Name", "")): list(_subnets(_object(each.get("IPAM")).get("Config")))
        for each in _networks(engine, driver, deadline)
    }


def _subnets(config: Any) -> Iterator[Network]:
    for each in config if isinstance(config, list) else ():
        try:
            yield ip_network(str(_object(each).get("Subnet", "")), strict=False)
        except ValueError:
            continue


def read_container(engine: DockerEngine, name: str, deadline: Deadline) -> DockerContainer | None:
    """The container of a name. Raises TryAgain."""
    return _listed(engine, {"name": [f"^/{re.escape(name)}$"]}, deadline)


def read_container_of(engine: DockerEngine, container_id: str, deadline: Deadline) -> DockerContainer | None:
    """The container with an ID, by the name that it has now. Raises TryAgain."""
    return _listed(engine, {"id": [container_id]}, deadline)


def _listed(engine: DockerEngine, filters: Mapping[str, list[str]], deadline: Deadline) -> DockerContainer | None:
    answer = engine.ask(f"/containers/json?all=1&filters={quote(json.dumps(filters))}", deadline)
    if not isinstance(answer, list) or len(answer) != 1:
        return None
    found = _object(answer[0])
    names = found.get("Names")
    name = str(names[0]).removeprefix("/") if isinstance(names, list) and names else ""
    return DockerContainer(
        str(found.get("Id", "")),
        ContainerIdentity(name, str(found.get("Image", "")), labels=_texts(found.get("Labels"))),
    )


def find_container(sandbox: str, docker_root: str = DOCKER_ROOT) -> DockerContainer | None:
    """The container whose network namespace a file is (Docker's SandboxKey); None if there is no such file yet, or
    nothing says whose it is.
    """
    try:
        inode = os.stat(sandbox).st_ino
    except OSError:
        return None
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}/ns/net").st_ino != inode:
                continue
            lines = read_bytes(f"/proc/{process}/cgroup", limit=_CGROUP_BYTES).decode("ascii", "replace").splitlines()
        except (OSError, OutOfBounds):
            continue  # it has ended
        for line in lines:
            found = _CONTAINER_ID.search(line)
            if found and not is_guest(found.group(1), docker_root):
                return _read_config(found.group(1), docker_root)
    return None


def is_guest(container_id: str, docker_root: str) -> bool:
    """Whether its namespace is another container's (``--network container:NAME``)."""
    document = _read_object(f"{docker_root}/containers/{container_id}/hostconfig.json")
    return str(document.get("NetworkMode", "")).startswith("container:")


def _read_config(container_id: str, docker_root: str) -> DockerContainer | None:
    document = _read_object(f"{docker_root}/containers/{container_id}/config.v2.json")
    if not document:
        return None
    config = _object(document.get("Config"))
    name = str(document.get("Name", "")).removeprefix("/")
    labels = _texts(config.get("Labels"))
    return DockerContainer(container_id, ContainerIdentity(name, str(config.get("Image", "")), labels=labels))


def _read_object(path: str) -> Mapping[str, Any]:
    """Nothing if it cannot be read."""
    try:
        return _object(json.loads(read_bytes(path, limit=CONFIG_BYTES)))
    except (OSError, OutOfBounds, ValueError, RecursionError):
        return {}


def read_docker_root(engine: DockerEngine, deadline: Deadline) -> str:
    """The directory of Docker's own files. Raises TryAgain."""
    root = _object(engine.ask("/info", deadline)).get("DockerRootDir")
    if not isinstance(root, str) or not root.startswith("/"):
        raise TryAgain("cannot ask Docker: it does not say where its files are")
    return root


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> Mapping[str, str]:
    return {key: text for key, text in _object(value).items() if isinstance(text, str)}
