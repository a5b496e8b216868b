"""The settings of ``calico-docker``: environment variables, those of upstream's libnetwork plugin under their names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from cni_calico.cni.netconf import require_node_name
from cni_calico.daemon.settings_table import (
    Kind,
    choice,
    number,
    parse_each,
    parse_flag,
    parse_seconds,
    setting,
    settings_table,
)
from cni_calico.directories import nodename_file
from cni_calico.errors import InvalidConfig
from cni_calico.kernel.files import Files
from cni_calico.plugin.call.node_name import os_host_name

PLUGIN_DIR = "/run/docker/plugins"
ENGINE_SOCKET = "/run/docker.sock"
_TEXT = Kind(str, "text")
_FLAG = Kind(parse_flag, "true or false")


@settings_table
class DockerSettings:
    """See docs/docker.md."""

    engine_socket: str = setting("CALICO_DOCKER_SOCKET", _TEXT, ENGINE_SOCKET, "Docker's own socket")
    plugin_dir: str = setting("CALICO_DOCKER_PLUGIN_DIR", _TEXT, PLUGIN_DIR, "where the driver's sockets are")
    policy_wait_s: float = setting(
        "CALICO_DOCKER_POLICY_WAIT",
        Kind(parse_seconds, "seconds"),
        10.0,
        "how long a container's start waits for its policy",
    )
    label_endpoints: bool = setting(
        "CALICO_LIBNETWORK_LABEL_ENDPOINTS", _FLAG, True, "whether a container's labels are those of its endpoint"
    )
    create_profiles: bool = setting(
        "CALICO_LIBNETWORK_CREATE_PROFILES", _FLAG, True, "whether a network gets a Profile"
    )
    interface_prefix: str = setting("CALICO_LIBNETWORK_IFPREFIX", _TEXT, "eth", "of interfaces in containers")
    veth_mtu: int = setting("CALICO_LIBNETWORK_VETH_MTU", number(68, 65535), 0, "of a network without -o mtu")
    log_level: str = setting(
        "CALICO_DOCKER_LOGLEVEL", choice("debug", "info", "warning", "error"), "info", "of what is logged to stderr"
    )


def parse_docker_settings(environ: Mapping[str, str]) -> DockerSettings:
    """Raises InvalidConfig, with every setting that is wrong."""
    values, wrong = parse_each(DockerSettings, environ)
    if wrong:
        raise InvalidConfig("cannot start: " + "; ".join(wrong.values()))
    return DockerSettings(**values)


def read_docker_node(environ: Mapping[str, str], files: Files) -> str:
    """The node's name, as calico-node knows it. Raises InvalidConfig."""
    written = ""
    with suppress(OSError, UnicodeDecodeError):  # calico-node has never run here
        written = files.read_text(nodename_file(environ)).strip()
    name = environ.get("NODENAME", "").strip() or written or environ.get("HOSTNAME", "").lower() or os_host_name()
    require_node_name(name, "the node's name")
    return name
