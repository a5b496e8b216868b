"""A service that has no memory even for its first modules says that in one line, and nothing else."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

import pytest

from tests.conftest import ROOT

LAUNCHERS = sorted((ROOT / "build" / "launch").glob("*.py"))
SERVICES = {path.stem: path for path in LAUNCHERS if "for months" in path.read_text()}
FROZEN = "/frozen"


class NoMemory:
    """Finds no module of this name, for want of memory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == self.name:
            raise MemoryError


def imported(name: str) -> list[str]:
    """What the launcher imports of ours, but for the module that knows what a shortage is."""
    lines = [line.split() for line in SERVICES[name].read_text().splitlines()]
    found = [words[1] for words in lines if words[:1] == ["from"] and words[1].startswith("cni_calico.")]
    return [module for module in found if module != "cni_calico.shortage"]


@pytest.mark.parametrize(("name", "module"), [(name, module) for name in SERVICES for module in imported(name)])
def test_no_memory_for_a_module(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "_MEIPASS", FROZEN, raising=False)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoMemory(module), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SERVICES[name]))
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"{name}: cannot continue: this host is short of memory\n"


def test_the_agent_is_one_of_the_services() -> None:
    assert {"calico-node", "calico-typha", "calico-docker"} <= SERVICES.keys()
    assert imported("calico-node") == ["cni_calico.packed", "cni_calico.nodeagent.main"]
