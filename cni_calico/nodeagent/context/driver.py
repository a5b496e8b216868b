"""PURE: the parameters of a driver of another data plane.

Rule: whoever may write a FelixConfiguration may choose among the programs that whoever runs the node has installed, and
run nothing that a pod may have written.
"""

from __future__ import annotations

import re

from cni_calico.daemon.settings_table import FLAG, Kind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PATH = re.compile(r"/(usr|opt|bin|sbin)(/[A-Za-z0-9][A-Za-z0-9._-]*)+")


def parse_driver(text: str) -> str:
    """The name of a program in PATH, or its path. Raises ValueError."""
    if _NAME.fullmatch(text) or _PATH.fullmatch(text):
        return text
    raise ValueError("expected the name of a program in PATH, or its path below /usr, /opt, /bin or /sbin")


INTERNAL_DRIVER = (
    FLAG,
    True,
    "Program this node's kernel. false: another data plane (Calico/VPP) does what policies ask for, and gets it from "
    "DataplaneDriver; this agent leaves the kernel alone.",
)
DRIVER = (
    Kind(parse_driver, "program"),
    "calico-iptables-plugin",
    "The driver of that data plane: a program in PATH, or its path below /usr, /opt, /bin or /sbin.",
)
