"""Fixtures of namespaces; tests elsewhere import them from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.netns.namespaces import Namespace, host_namespace, namespace

if TYPE_CHECKING:
    from tests.netns.bird_cluster import Lab
    from tests.netns.nodes import Node

MakeNamespace = Callable[..., Namespace]


@pytest.fixture
def host_ns() -> Iterator[Namespace]:
    """A namespace to be the host's."""
    with host_namespace() as made:
        yield made


@pytest.fixture
def make_pod_ns() -> Iterator[MakeNamespace]:
    """Makes namespaces for pods."""
    with ExitStack() as stack:
        yield lambda label="pod": stack.enter_context(namespace(label))


@pytest.fixture
def pod_ns(make_pod_ns: MakeNamespace) -> Namespace:
    return make_pod_ns()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Namespaces with BIRD on one or more switches."""
    from tests.netns.bird_cluster import make_lab

    with make_lab(tmp_path) as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node of the agent's, with a card, on a datastore of its own; nothing was started."""
    from tests.netns.agents import Store
    from tests.netns.nodes import Node
    from tests.netns.startups import add_card

    with namespace("node") as ns:
        add_card(ns, "eth0", "10.0.0.1/24")
        made = Node(ns, "n1", tmp_path / "n1", Store(tmp_path / "store.db"))
        made.root.mkdir()
        try:
            yield made
        finally:
            made.end()
