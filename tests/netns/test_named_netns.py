"""Namespaces with a name: made, removed, and both broken at netns.create and netns.remove."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from cni_calico import faults
from cni_calico.errors import KernelError
from cni_calico.kernel import named_netns

pytestmark = pytest.mark.netns


@pytest.fixture
def name() -> Iterator[str]:
    made = f"cct-{os.getpid()}-named"
    yield made
    faults.install(None)
    named_netns.remove_named(made)
    assert named_netns.list_named(made) == []


def test_it_is_made_once_and_removed_more_than_once(name: str) -> None:
    path = named_netns.ensure_named(name)
    assert path == named_netns.path_of(name) and named_netns.list_named(name) == [name]
    assert os.stat(path).st_ino != os.stat("/proc/self/ns/net").st_ino
    with pytest.raises(KernelError, match="exists already"):
        named_netns.ensure_named(name)
    for _ in range(2):
        named_netns.remove_named(name)
        assert named_netns.list_named(name) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_is_told_and_the_next_attempt_succeeds(name: str, when: str) -> None:
    faults.install(faults.FaultPlan(f"netns.create:{when}:1:fail"))
    with pytest.raises(KernelError, match=f"cannot create network namespace {name}"):
        named_netns.ensure_named(name)
    assert named_netns.list_named(name) == ([name] if when == "after" else [])
    named_netns.remove_named(name)
    named_netns.ensure_named(name)
    faults.install(faults.FaultPlan(f"netns.remove:{when}:1:fail"))
    with pytest.raises(KernelError, match=f"cannot remove network namespace {name}"):
        named_netns.remove_named(name)
    assert named_netns.list_named(name) == ([name] if when == "before" else [])
