"""Fixtures of namespaces; tests elsewhere import them from here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.netns.namespaces import Namespace, namespace

if TYPE_CHECKING:
    from tests.netns.bird.cluster import Lab
    from tests.netns.nodes import Node


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Namespaces with BIRD on one or more switches."""
    from tests.netns.bird.cluster import make_lab

    with make_lab(tmp_path) as made:
        yield made


@pytest.fixture
def agent_node(tmp_path: Path, bundle: Path) -> Iterator[Node]:
    """A node of the agent's, with a card, on a datastore of its own; nothing was started. Its programs are the frozen
    ones, which start in half the time.
    """
    from tests.netns.agents import Store
    from tests.netns.nodes import Node
    from tests.netns.startups import add_card

    with namespace("node") as ns:
        add_card(ns, "eth0", "10.0.0.1/24")
        made = Node(ns, "n1", tmp_path / "n1", Store(tmp_path / "store.db"), bin_dir=bundle)
        made.root.mkdir()
        try:
            yield made
        finally:
            made.end()


@pytest.fixture
def host_n1() -> Iterator[Namespace]:
    """Node n1's network: a card, a pod's interface, and BIRD's route to another node."""
    from tests.netns.startups import add_card

    with namespace("n1") as ns:
        add_card(ns, "eth0", "10.0.0.1/24", "fd00::1/64")
        add_card(ns, "calia")
        ns.do("route", "add", "default", "via", "10.0.0.254")
        ns.do("-6", "route", "add", "default", "via", "fd00::254")
        ns.do("route", "add", "10.65.7.0/26", "via", "10.0.0.7", "proto", "bird", "metric", "1024")
        yield ns
