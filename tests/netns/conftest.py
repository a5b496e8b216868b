"""Fixtures of namespaces; tests elsewhere import them from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.netns.namespaces import Namespace, host_namespace, namespace

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
