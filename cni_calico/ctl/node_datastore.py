"""The datastore of this host's node. Rule: calicoctl takes the embedded store without being told only where this host's
node does not say that it uses another one: a second store would be written that nobody reads.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping

from cni_calico import directories
from cni_calico.ctl.settings import DEFAULT_PATH, parse_environment
from cni_calico.errors import InvalidConfig
from cni_calico.model.access import DatastoreConfig, describe_config, is_same_datastore
from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_live
from cni_calico.regular import read_regular

NODE_ENVIRONMENT = "/etc/calico/calico-node.env"


def read_node_name(environ: Mapping[str, str]) -> str:
    """The name that this host's node has; without the agent's file the host's."""
    try:
        return read_regular(f"{directories.state_dir(environ)}/nodename").decode().strip()
    except (OSError, ValueError):
        return os.uname().nodename.lower()


def require_same(config: DatastoreConfig, environ: Mapping[str, str]) -> None:
    """``config`` is the embedded store, which nobody named. Raises InvalidConfig if the node uses another datastore."""
    for who, named in _others(config, environ):
        raise InvalidConfig(
            f"cannot tell which datastore is meant: none is configured for calicoctl, and {who} uses {named}",
            details=f"name it in {DEFAULT_PATH}, or load the node's variables: set -a; . {NODE_ENVIRONMENT}; set +a; "
            f"DATASTORE_TYPE=local means {config.path} all the same",
        )


def _others(config: DatastoreConfig, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(who, datastore in words) for each that names another one."""
    configured = read_node_config(NODE_ENVIRONMENT)
    if configured is not None and not is_same_datastore(config, configured):
        yield f"calico-node as set up in {NODE_ENVIRONMENT}", describe_config(configured)
    fields = read_status(directories.run_dir(environ))
    used = str(fields.get("datastore") or "")
    if used and used != describe_config(config) and not why_not_live(fields, since_boot()):
        yield "the agent that runs on this host", used


def read_node_config(path: str) -> DatastoreConfig | None:
    """The datastore that a unit's EnvironmentFile names; None if it names none, or there is no such file. Raises
    InvalidConfig for one that cannot be read or understood: it may name any.
    """
    try:
        with open(path, encoding="utf-8") as file:
            config = parse_environment(parse_environment_file(file.read()))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, InvalidConfig) as e:
        why = e.strerror if isinstance(e, OSError) else str(e)
        raise InvalidConfig(
            f"cannot tell which datastore is meant: none is configured for calicoctl, and calico-node's {path} cannot "
            f"be used: {why}",
            details=f"correct that file, name the datastore in {DEFAULT_PATH}, or set DATASTORE_TYPE",
        ) from e
    return config if config.type else None


def parse_environment_file(text: str) -> dict[str, str]:
    """The variables of systemd's EnvironmentFile; what is no assignment is left out."""
    found = {}
    for line in text.splitlines():
        name, is_assignment, value = line.strip().partition("=")
        if not is_assignment or name.startswith(("#", ";")):
            continue
        try:
            found[name.strip()] = " ".join(shlex.split(value))
        except ValueError:
            continue  # quotes that do not end
    return found
