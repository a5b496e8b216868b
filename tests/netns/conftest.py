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
