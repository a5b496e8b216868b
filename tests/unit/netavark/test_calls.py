"""The plugins that podman's calls run: their order, and what is said when they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cni_calico.errors import DelegateFailed
from cni_calico.netavark.calls import Plugins
from cni_calico.netavark.documents import Membership, parse_document, parse_membership
from tests.unit.netavark.test_documents import CONTAINER


def membership(**changed: object) -> Membership:
    return parse_membership(parse_document(json.dumps(CONTAINER | changed).encode()))


def plugins(directory: Path, **failures: str) -> Plugins:
    """Both plugins as executables that note their calls; those of ``failures`` fail with that message."""
    for name in ("calico", "portmap"):
        error = json.dumps({"cniVersion": "1.0.0", "code": 100, "msg": failures.get(name, "")})
        answer = f"echo '{error}'; exit 1" if name in failures else "exit 0"
        executable = directory / name
        executable.write_text(f"#!/bin/sh\necho {name} $CNI_COMMAND >> {directory}/calls\n{answer}\n")
        executable.chmod(0o755)
    return Plugins(str(directory), {})


def calls(directory: Path) -> list[str]:
    return (directory / "calls").read_text().splitlines()


def test_a_tear_down_runs_both(tmp_path: Path) -> None:
    plugins(tmp_path).tear_down("/proc/self/ns/net", membership())
    assert calls(tmp_path) == ["portmap DEL", "calico DEL"]


def test_without_ports_only_calico_runs(tmp_path: Path) -> None:
    plugins(tmp_path).tear_down("/proc/self/ns/net", membership(port_mappings=None))
    assert calls(tmp_path) == ["calico DEL"]


@pytest.mark.parametrize("name", ["calico", "portmap"])
def test_one_failure_is_told_as_it_is_after_both_have_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(DelegateFailed) as told:
        plugins(tmp_path, **{name: "no more"}).tear_down("/proc/self/ns/net", membership())
    assert str(told.value) == "no more"
    assert calls(tmp_path) == ["portmap DEL", "calico DEL"]


def test_two_failures_are_told_in_one_error(tmp_path: Path) -> None:
    with pytest.raises(DelegateFailed) as told:
        plugins(tmp_path, calico="no datastore", portmap="no nft").tear_down("/proc/self/ns/net", membership())
    assert str(told.value) == "portmap: no nft; calico: no datastore"
    assert calls(tmp_path) == ["portmap DEL", "calico DEL"]


def test_a_set_up_that_fails_is_undone_and_told(tmp_path: Path) -> None:
    with pytest.raises(DelegateFailed, match="no nft"):
        plugins(tmp_path, portmap="no nft").set_up("/proc/self/ns/net", membership())
    assert calls(tmp_path) == ["calico ADD", "portmap ADD", "portmap DEL", "calico DEL"]
