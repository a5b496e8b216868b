"""Where runtimes keep their containers, and what their containers' IDs look like.

Rule: an ADD imports this before it knows whether there is a runtime to ask; so it imports nothing.
"""

PODMAN_SQLITE = "/var/lib/containers/storage/db.sql"  # since podman 4.8
PODMAN_BOLT = "/var/lib/containers/storage/libpod/bolt_state.db"
CONTAINERD_BOLT = "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"
STORES = (PODMAN_SQLITE, PODMAN_BOLT, CONTAINERD_BOLT)  # the likelier first

_ID_LENGTH, _HEX = 64, frozenset("0123456789abcdef")


def is_runtimes(container_id: str) -> bool:
    """Whether it is an ID as podman, nerdctl and Docker make them."""
    return len(container_id) == _ID_LENGTH and _HEX.issuperset(container_id)
