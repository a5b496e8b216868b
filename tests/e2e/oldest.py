"""Allocations as the oldest releases of Calico left them."""

from __future__ import annotations

from tests.e2e.host import Node


def grow_old(node: Node, container: str, handle: str, *, network: str = "calnet") -> None:
    """Make a container's allocation look as the oldest releases wrote it: under ``handle``, without attributes."""
    documents: dict[str, object] = {}
    ours = f"{network}.{container}"
    for path, document in node.dump().items():
        if path.endswith(f"/handle/{ours}"):
            documents |= {path: None, path.replace(f"/handle/{ours}", f"/handle/{handle}"): document}
        elif "/assignment/" in path:
            for attribute in document["attributes"]:
                if attribute["handle_id"] == ours:
                    attribute |= {"handle_id": handle, "secondary": {}}
            documents[path] = document
    node.put(documents)
