"""Which files set a host up, with their contents.

Rule: the same options and facts give the same files, so that a second run finds nothing to do; everything that the
user chose is in one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.node.setup.options import SetupOptions
from cni_calico.ctl.settings import DEFAULT_PATH
from cni_calico.directories import CNI_BIN_DIR, CNI_NET_DIR
from cni_calico.errors import InvalidConfig

ENVIRONMENT = "/etc/calico/calico-node.env"
NETWORK = "calico"  # of CNI and of podman
CONFLIST = f"{CNI_NET_DIR}/10-calico.conflist"
UNIT_DIRECTORY = "/etc/systemd/system"
NETAVARK_LINK = "/usr/local/libexec/netavark/calico"  # the link's name is the driver's
COMMAND_LINK = "/usr/local/bin/calicoctl"
PORTMAP = "portmap"
_HEAD = '# Written by "calicoctl node init"; docs/node-environment.md lists every variable.'


@dataclass(frozen=True, slots=True)
class SetupFacts:
    """``executables``: the directory of ours. ``units``: those that have to be written, by name, with their text; those
    of a package are there already. ``netavark``: podman makes its networks with it. ``portmap``: where it is, "" if
    nowhere. ``has_bird``: BIRD is installed. ``has_command``: a shell finds calicoctl. ``docker``: Docker is installed,
    and our drivers for it. ``outdated``: podman makes its networks with netavark, and this is too old for networks of
    ours.
    """

    executables: str
    units: Mapping[str, str]
    runtimes: str  # the text of the units' drop-in
    netavark: bool = False
    portmap: str = ""
    has_bird: bool = False
    has_command: bool = False
    docker: bool = False
    outdated: str = ""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """``target``: it is a symbolic link to this; else a file with ``text``."""

    path: str
    text: str = ""
    mode: int = 0o644
    target: str = ""


def plan_files(options: SetupOptions, facts: SetupFacts, *, without_podman: bool = False) -> tuple[PlannedFile, ...]:
    """In the order in which they are written: the network configuration last, because runtimes then use it.
    ``without_podman``: even if its networks cannot be ours. Raises InvalidConfig for what this host cannot do.
    """
    if facts.outdated and not without_podman:
        raise InvalidConfig(
            f"cannot set this host up: podman makes its networks with netavark here, and has {facts.outdated} that can "
            "make one of Calico",
            details='let podman use CNI: network_backend = "cni" below [network] in '
            "/etc/containers/containers.conf.d/calico.conf (docs/podman.md); --force sets up everything but podman",
        )
    if options.as_number and not facts.has_bird:
        raise InvalidConfig(
            "cannot set this host up: --as needs BIRD, which is not installed",
            details="Debian: apt-get install bird2; without BGP leave --as and --peer out",
        )
    return tuple(_files(options, facts))


def _files(options: SetupOptions, facts: SetupFacts) -> Iterator[PlannedFile]:
    yield PlannedFile(ENVIRONMENT, render_environment(options), 0o600)
    if not options.is_local:
        yield PlannedFile(DEFAULT_PATH, render_calicoctl(options), 0o600)
    for name, text in facts.units.items():
        yield PlannedFile(f"{UNIT_DIRECTORY}/{name}", text)
    yield PlannedFile(f"{UNIT_DIRECTORY}/calico-node.service.d/runtimes.conf", facts.runtimes)
    if not facts.has_command:
        yield PlannedFile(COMMAND_LINK, target=f"{facts.executables}/calicoctl")
    if facts.netavark:
        yield PlannedFile(NETAVARK_LINK, target=f"{facts.executables}/calico-netavark")
    if facts.portmap and facts.portmap != f"{CNI_BIN_DIR}/{PORTMAP}":  # where other runtimes than podman look
        yield PlannedFile(f"{CNI_BIN_DIR}/{PORTMAP}", target=facts.portmap)
    yield PlannedFile(CONFLIST, render_network(options, has_portmap=bool(facts.portmap)))


def render_environment(options: SetupOptions) -> str:
    """PURE: of calico-node, as systemd reads it."""
    lines = [_HEAD]
    if options.is_local:
        lines.append("DATASTORE_TYPE=local")
    else:
        lines += ["DATASTORE_TYPE=etcdv3", f"ETCD_ENDPOINTS={','.join(options.endpoints)}", "WAIT_FOR_DATASTORE=true"]
        files = (("ETCD_CA_CERT_FILE", options.ca), ("ETCD_CERT_FILE", options.cert), ("ETCD_KEY_FILE", options.key))
        lines += [f"{name}={path}" for name, path in files if path]
    if options.name:
        lines.append(f"NODENAME={options.name}")
    lines += _between_hosts(options)
    lines += [f"CALICO_IPV4POOL_CIDR={options.cidr4}"] if options.cidr4 else []
    lines.append(f"CALICO_IPV6POOL_CIDR={options.cidr6 or 'none'}")
    lines += ["CALICO_IPV6POOL_NAT_OUTGOING=true"] if options.cidr6 else []
    lines += ["FELIX_HEALTHENABLED=true", "# journald keeps the log", "CALICO_DISABLE_FILE_LOGGING=true"]
    return "".join(f"{line}\n" for line in lines)


def _between_hosts(options: SetupOptions) -> list[str]:
    if options.as_number:
        # what the peers route needs no tunnel
        mode = "Never" if options.peers else "CrossSubnet"
        backend = ["CALICO_NETWORKING_BACKEND=bird", f"AS={options.as_number}", f"CALICO_IPV4POOL_IPIP={mode}"]
        return ["IP=autodetect", *backend]
    if options.is_local:
        return ["# no other nodes: no node address, no tunnels, no BGP", "CALICO_NETWORKING_BACKEND=none"]
    return ["IP=autodetect", "CALICO_NETWORKING_BACKEND=vxlan", "CALICO_IPV4POOL_VXLAN=Always"]


def render_calicoctl(options: SetupOptions) -> str:
    """PURE: calicoctl's configuration file; JSON is YAML."""
    fields = {
        "datastoreType": "etcdv3",
        "etcdEndpoints": ",".join(options.endpoints),
        "etcdCACertFile": options.ca,
        "etcdCertFile": options.cert,
        "etcdKeyFile": options.key,
    }
    lines = ["apiVersion: projectcalico.org/v3", "kind: CalicoAPIConfig", "metadata: {}", "spec:"]
    lines += [f"  {name}: {json.dumps(value)}" for name, value in fields.items() if value]
    return "".join(f"{line}\n" for line in lines)


def render_network(options: SetupOptions, *, has_portmap: bool) -> str:
    """PURE: the network configuration of CNI."""
    plugin: dict[str, Any] = {"type": "calico", "nodename_file_optional": True, "profile_ingress": "anyone"}
    plugin |= {name: value for name, value in datastore_keys(options).items() if value}
    plugin["ipam"] = {"type": "calico-ipam"} | ({"assign_ipv6": "true"} if options.cidr6 else {})
    plugins = [plugin]
    if has_portmap:
        plugins.append({"type": PORTMAP, "capabilities": {"portMappings": True}})
    return json.dumps({"cniVersion": "1.0.0", "name": NETWORK, "plugins": plugins}, indent=2) + "\n"


def datastore_keys(options: SetupOptions) -> dict[str, str]:
    """PURE: of the network configuration, and of a network of podman's; "" for what is not given."""
    if options.is_local:
        return {"datastore_type": "local", "nodename": options.name}
    return {
        "datastore_type": "etcdv3",
        "etcd_endpoints": ",".join(options.endpoints),
        "etcd_ca_cert_file": options.ca,
        "etcd_cert_file": options.cert,
        "etcd_key_file": options.key,
        "nodename": options.name,
    }
