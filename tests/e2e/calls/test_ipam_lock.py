"""Upstream's host-wide IPAM lock is waited for, but not for ever: who holds it may be stuck, or many may want it."""

from __future__ import annotations

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.lock import file_lock
from tests.e2e.host import Node, added, addresses, cleaned
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns


def test_calls_go_on_while_somebody_holds_it(plain_node: Node, pod_ns: Namespace) -> None:
    path = plain_node.root / "run" / "ipam.lock"
    with file_lock(str(path), Deadline.after(1)):
        assert addresses(added(plain_node, "a" * 64, pod_ns))
        cleaned(plain_node, "a" * 64)
    assert "continuing without the host-wide IPAM lock" in (plain_node.root / "cni.log").read_text()
