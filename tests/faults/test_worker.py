"""What a worker breaks it also takes away, as a runtime does that ends a container's namespace after its DEL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.host import Node
from tests.faults.worker import Options, Slot, Worker
from tests.netns.namespaces import Namespace


def renamed_and_drained(node: Node, pod_ns: Namespace, history: Path) -> tuple[str, list[str]]:
    """The host end's last name, and the worker's problems."""
    slot = Slot(pod_ns)
    worker = Worker(node, 0, 1, [slot], Options(str(history)))
    while not slot.container or slot.unsure:
        worker._add(slot)
    worker._rename_host_end(slot)
    worker.drain()
    return f"renamed{worker.count}", worker.problems


@pytest.mark.netns
def test_a_host_end_with_another_name(plain_node: Node, pod_ns: Namespace, tmp_path: Path) -> None:
    name, problems = plain_node.host.call(renamed_and_drained, plain_node, pod_ns, tmp_path / "history")
    assert not problems and name not in plain_node.host.link_names() and pod_ns.link_names() == {"lo"}
