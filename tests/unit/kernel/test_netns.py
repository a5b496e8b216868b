"""Network namespaces: what is one, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cni_calico.errors import NetnsGone
from cni_calico.kernel import netns


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def refused(path: str) -> str:
    before = descriptors()
    with pytest.raises(NetnsGone) as caught:
        netns.open_netns(path)
    assert descriptors() == before
    assert repr(path) in caught.value.message
    assert caught.value.details
    return caught.value.message


def test_missing() -> None:
    assert refused("/var/run/netns/nosuch").endswith("No such file or directory")
    assert refused("").endswith("No such file or directory")
    assert refused("/etc/passwd/x").endswith("Not a directory")
    assert refused("/nul\0byte").endswith("embedded null byte")


def test_not_a_namespace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for a writer
    for path in (tmp_path / "file", tmp_path / "fifo", tmp_path, Path("/dev/null")):
        assert refused(str(path)).endswith("not a namespace")


def test_another_kind_of_namespace() -> None:
    assert refused("/proc/self/ns/mnt").endswith("a namespace, but not a network namespace")


def test_the_hosts_own() -> None:
    assert refused("/proc/self/ns/net").endswith("it is the host's own")


def test_a_received_descriptor_is_not_trusted(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file, pytest.raises(NetnsGone, match="'/the/path': not a namespace"):
        netns.require_netns(file.fileno(), "/the/path")
