"""PURE: what help says about setting a host up and taking it down; help_texts.py has the other commands.

Rule: as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Help:
    """``summary`` is the command's line in the list of commands; ``examples`` are (command line without the program,
    its purpose).
    """

    summary: str
    text: str = ""
    examples: Sequence[tuple[str, str]] = ()


SETUP: Mapping[str, Help] = {
    "node init": Help(
        "set this host up as a node without Kubernetes",
        "Writes calico-node's settings, its units with the boot table, and the network configuration of the runtimes "
        "that are installed; starts calico-node, and waits until 'cluster check' passes. A second run changes only "
        "what differs. Without --as packets travel between hosts by VXLAN. Needs root, and systemd.",
        (
            ("node init --datastore local", "one host by itself"),
            ("node init --datastore local --cidr 10.77.0.0/16 --cidr fd00:77::/48 --dry-run", "what that would write"),
            (
                "node init --datastore etcd --endpoints https://10.0.0.10:2379 --ca /etc/calico/ca.crt "
                "--cert /etc/calico/etcd.crt --key /etc/calico/etcd.key --name web1",
                "one of several hosts",
            ),
            (
                "node init --datastore etcd --endpoints http://10.0.0.10:2379 --as 64512 --peer 192.0.2.1@64500 "
                "--force",
                "with BGP to a router, in the place of files that somebody else wrote",
            ),
        ),
    ),
    "node uninstall": Help(
        "take everything of Calico away from this host",
        "Undoes what 'node init' did, and removes what calico-node has made: interfaces, routes, packet filter rules, "
        "this node's records, and the embedded datastore. The executables stay. Needs root.",
        (
            ("node uninstall --dry-run", "what would be removed"),
            ("node uninstall --force", "even if containers are still attached"),
        ),
    ),
}
