"""PURE: what the commands of ``calicoctl encryption`` do, in words."""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.ctl.command_line.node_help import Help

ENCRYPTION: Mapping[str, Help] = {
    "encryption": Help("WireGuard between nodes: keys, peers, and whether it is mandatory"),
    "encryption status": Help(
        "each node's key, and what this node's peers do",
        "Where this runs on a node with an agent, also its interfaces: last handshake, bytes, and who is plain, and "
        "why. Fails if encryption is enabled and a node has no usable key.",
        (
            ("encryption status", "all nodes, and this one's peers"),
            ("encryption status node-1 -o json", "one node, for a script"),
        ),
    ),
    "encryption rotate": Help(
        "a new key for a node, without losing a packet",
        "With --all one node after the other; a node that does not answer within 30 s ends it.",
        (
            ("encryption rotate node-1", "one node"),
            ("encryption rotate --all", "every node that has a key"),
        ),
    ),
    "encryption strict": Help(
        "whether what is not encrypted may go between nodes",
        "On is refused while a node has no usable key, because that would be cut off.",
        (
            ("encryption strict on", "encrypted, or not at all"),
            ("encryption strict on --force", "although nodes without a key are cut off until they have one"),
            ("encryption strict off", "nodes without a key are reached in plain text again"),
        ),
    ),
}
