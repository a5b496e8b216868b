"""``calicoctl node run``: upstream starts a container with docker; this only prints how to run calico-node.

Rule: it starts nothing and always fails, so that no script believes that a node was started. Upstream's options are
translated into the variables with the same meaning.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Mapping

from cni_calico.ctl.session import CommandFailed
from cni_calico.directories import LOG_DIR, RUN_DIR, STATE_DIR

IMAGE = "IMAGE"  # there is no registry of ours: build/image/build.sh makes the image
_DATASTORE = (
    "DATASTORE_TYPE",
    "DATASTORE_PATH",
    "ETCD_ENDPOINTS",
    "ETCD_CA_CERT_FILE",
    "ETCD_CERT_FILE",
    "ETCD_KEY_FILE",
)
_MOUNTS = (
    "/lib/modules:/lib/modules:ro",
    "/run:/run",
    *(f"{directory}:{directory}" for directory in (RUN_DIR, STATE_DIR, LOG_DIR)),
    "/etc/calico:/etc/calico:ro",
)


def explain(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Always raises CommandFailed; its output has the commands."""
    variables = _variables(arguments, environ)
    raise CommandFailed(
        "calicoctl node run starts nothing here", output=render(variables, arguments.node_image or IMAGE)
    )


def _variables(arguments: Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    found = {name: environ.get(name, "") for name in _DATASTORE}
    found |= {
        "NODENAME": arguments.name,
        "AS": arguments.as_number,
        "IP": arguments.ip,
        "IP6": arguments.ip6,
        "IP_AUTODETECTION_METHOD": arguments.ip_autodetection_method,
        "IP6_AUTODETECTION_METHOD": arguments.ip6_autodetection_method,
        "CALICO_NETWORKING_BACKEND": arguments.backend,
        "NO_DEFAULT_POOLS": "true" if arguments.no_default_ippools else "",
    }
    return {name: value for name, value in found.items() if value}


def render(variables: Mapping[str, str], image: str) -> str:
    """PURE: the commands for systemd and for podman."""
    lines = ["As a service (docs/hosts.md says how it is installed):", ""]
    if variables:
        lines += ["  # in /etc/calico/calico-node.env"]
        lines += [f"  {name}={value}" for name, value in variables.items()]
    lines += ["  systemctl enable --now calico-node", "", "As a container:", ""]
    words = ["podman", "run", "-d", "--name=calico-node", "--net=host", "--privileged", "--restart=always"]
    words += [f"-e {shlex.quote(f'{name}={value}')}" for name, value in variables.items()]
    words += [f"-v {mount}" for mount in _MOUNTS]
    return "\n".join([*lines, "  " + " \\\n    ".join([" ".join(words[:7]), *words[7:], image])]) + "\n"
