"""Where runtimes keep their containers.

Rule: an ADD imports this before it knows whether there is a runtime to ask; so it imports nothing.
"""

PODMAN_SQLITE = "/var/lib/containers/storage/db.sql"  # since podman 4.8
PODMAN_BOLT = "/var/lib/containers/storage/libpod/bolt_state.db"
CONTAINERD_BOLT = "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"
STORES = (PODMAN_SQLITE, PODMAN_BOLT, CONTAINERD_BOLT)  # the likelier first
