"""Podman on this host: whether its networks can be ours, and the network that ``node init`` makes with netavark.

Rule: what podman says is read and judged before anything is changed; only a network that ``node init`` has noted as its
own, and that no container uses, is made anew or removed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cni_calico.ctl.node.setup.host import ask
from cni_calico.ctl.node.setup.options import SetupOptions
from cni_calico.ctl.node.setup.plan import NETWORK, SetupFacts, datastore_keys
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import CalicoError, KernelError
from cni_calico.kernel.filter.programs import find_program

# plugins of netavark: podman passes unknown drivers on since 4.4, netavark runs them since 1.6
OLDEST_PODMAN, OLDEST_NETAVARK = (4, 4), (1, 6)
NEW, SAME, CHANGED = "create", "keep", "recreate"
_NETAVARKS = tuple(
    f"{place}/podman/netavark" for place in ("/usr/local/libexec", "/usr/local/lib", "/usr/libexec", "/usr/lib")
)
# options of calico-netavark that say where containers are recorded, and what they let in
_COMPARED = (
    "datastore_type", "datastore_path", "etcd_endpoints", "etcd_ca_cert_file", "etcd_cert_file", "etcd_key_file",
    "etcd_discovery_srv", "kubeconfig", "nodename", "profile_ingress",
)  # fmt: skip
_CREATE_S = 120.0


@dataclass(frozen=True, slots=True)
class PodmanNetwork:
    """The network ``calico`` as podman has it, with the names of the containers that use it, stopped ones too."""

    driver: str
    has_ipv6: bool
    options: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[str, ...] = ()


def with_podman(facts: SetupFacts) -> SetupFacts:
    """The facts with those about podman. Nothing is lacking where it is not installed, or has CNI."""
    podman = find_program("podman")
    if not podman:
        return facts
    try:
        done = ask([podman, "info", "--format", "json"])
    except CalicoError:
        return facts
    version, backend, netavark = parse_info(done.stdout if done.rc == 0 else b"")
    if backend != "netavark":
        return facts
    outdated = find_outdated(version, netavark or _netavark_says())
    return replace(facts, netavark=not outdated, outdated=outdated)


def parse_info(text: bytes) -> tuple[str, str, str]:
    """PURE: the version, the network backend, and what netavark says of its version ("" before podman 4.5), of ``podman
    info``. "" for what cannot be read.
    """
    document = _parse_object(text)
    host = _section(document, "host")
    about = _section(host, "networkBackendInfo")
    found = (_section(document, "version").get("Version"), host.get("networkBackend"), about.get("version"))
    version, backend, netavark = (one if isinstance(one, str) else "" for one in found)
    return version, backend, netavark


def find_outdated(podman: str, netavark: str) -> str:
    """PURE: which of the two cannot have a network of ours, "" if both can. A version that is not known cannot."""
    if _parse_version(podman) < OLDEST_PODMAN:
        return f"podman {podman or 'of an unknown version'}, and {'.'.join(map(str, OLDEST_PODMAN))} is the first"
    if _parse_version(netavark) < OLDEST_NETAVARK:
        said = netavark.removeprefix("netavark").strip() or "of an unknown version"
        return f"netavark {said}, and {'.'.join(map(str, OLDEST_NETAVARK))} is the first"
    return ""


def _parse_version(text: str) -> tuple[int, ...]:
    """() if there is none in it."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()


def _netavark_says() -> str:
    path = next((path for path in _NETAVARKS if os.access(path, os.X_OK)), "")
    try:
        return ask([path, "--version"]).stdout.decode(errors="replace").strip() if path else ""
    except CalicoError:
        return ""


# -- the network ------------------------------------------------------------------------------------------------------


def read_network() -> PodmanNetwork | None:
    """None: podman has none of that name. Raises KernelError."""
    podman = find_program("podman")
    if not podman or ask([podman, "network", "exists", NETWORK]).rc:
        return None
    used = _podman("ps", "--all", "--filter", f"network={NETWORK}", "--format", "{{.Names}}")
    return parse_network(_podman("network", "inspect", NETWORK), used.decode(errors="replace").split())


def parse_network(text: bytes, containers: Sequence[str]) -> PodmanNetwork:
    """PURE: of ``podman network inspect``. Raises KernelError."""
    try:
        documents = json.loads(text)
    except (ValueError, RecursionError):
        documents = None
    document = documents[0] if isinstance(documents, list) and len(documents) == 1 else None
    if not isinstance(document, dict):
        raise KernelError(f"cannot read podman's network {NETWORK}: podman network inspect does not describe it")
    options = {str(name): str(value) for name, value in _section(document, "options").items()}
    return PodmanNetwork(
        str(document.get("driver", "")), document.get("ipv6_enabled") is True, options, tuple(containers)
    )


def plan_network(there: PodmanNetwork | None, options: SetupOptions, *, is_noted: bool) -> str:
    """PURE: what has to be done, as NEW, SAME or CHANGED; ``is_noted``: node init has made what is there. Raises
    CommandFailed if it must not be done.
    """
    if there is None:
        return NEW
    wanted = network_options(options)
    has = {name: there.options.get(name, "") for name in _COMPARED}
    differences = [name for name in _COMPARED if has[name] != wanted.get(name, "")]
    differences += ["--ipv6"] if there.has_ipv6 != bool(options.cidr6) else []
    if there.driver == "calico" and not differences:
        return SAME
    if not is_noted:
        what = "another driver" if there.driver != "calico" else f"other options ({', '.join(differences)})"
        raise CommandFailed(
            f"cannot set this host up: podman has a network {NETWORK} with {what}, which node init did not make",
            details=f"if nothing needs it: podman network rm {NETWORK}",
        )
    if there.containers:
        raise CommandFailed(
            f"cannot set this host up: podman's network {NETWORK} has to be made anew ({', '.join(differences)}), and "
            f"containers use it: {', '.join(there.containers[:5])}",
            details="podman rm -f removes them; make them again afterwards",
        )
    return CHANGED


def network_options(options: SetupOptions) -> dict[str, str]:
    """PURE: the driver's; the same datastore as the node has."""
    keys = {**datastore_keys(options), "profile_ingress": "anyone"}
    return {name: value for name, value in keys.items() if value}


def network_words(options: SetupOptions) -> list[str]:
    """PURE: what follows ``podman network create``."""
    words = ["--driver", "calico"] + (["--ipv6"] if options.cidr6 else [])
    words += [word for name, value in network_options(options).items() for word in ("-o", f"{name}={value}")]
    return [*words, NETWORK]


def ensure_network(options: SetupOptions, planned: str) -> None:
    """As planned. Raises KernelError."""
    if planned == CHANGED:
        remove_network(NETWORK)
    if planned != SAME:
        _podman("network", "create", *network_words(options))


def remove_network(name: str) -> None:
    """Absent is success, and so is podman's absence. Raises KernelError."""
    podman = find_program("podman")
    if podman and ask([podman, "network", "exists", name]).rc == 0:
        _podman("network", "rm", name)


def _podman(*words: str) -> bytes:
    """What it prints. Raises KernelError with its own words."""
    done = ask([find_program("podman"), *words], _CREATE_S)
    if done.rc:
        said = done.stderr.decode(errors="replace").strip()
        raise KernelError(f"cannot run podman {' '.join(words)}: {said}")
    return done.stdout


def _parse_object(text: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}
