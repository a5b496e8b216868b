"""What build/bootloader.py changes in the boot loader's code, for each processor."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import PyInstaller
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build"))

import bootloader

# instructions of 6.22.3, as objdump shows them: what stores the -1, and what the loader itself has for a 1
RESTART = {"x86_64": "c6 83 39 20 00 00 ff", "aarch64": "00008012 05008012 a0e60039"}
APPLICATION = {"x86_64": "c6 83 39 20 00 00 01", "aarch64": "20008052 25008052 a0e60039"}


@pytest.fixture
def loader(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize("machine", RESTART)
def test_the_known_instructions_are_replaced_and_nothing_else(loader: Path, machine: str) -> None:
    restart, application = (bytes.fromhex(text[machine]) for text in (RESTART, APPLICATION))
    loader.write_bytes(b"before" + restart + b"after")
    assert bootloader.start_once(loader, machine)
    assert loader.read_bytes() == b"before" + application + b"after"
    assert not bootloader.start_once(loader, machine)


@pytest.mark.parametrize("machine", [*RESTART, "riscv64"])
@given(before=st.binary(max_size=40), after=st.binary(max_size=40), times=st.sampled_from([0, 2, 3]))
def test_what_is_not_certain_stays_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, machine: str, before: bytes, after: bytes, times: int
) -> None:
    restart = bytes.fromhex(RESTART.get(machine, "00"))
    data = before + (restart + b"-") * times + after
    if data.count(restart) == 1:  # by chance
        return
    loader = tmp_path_factory.getbasetemp() / f"run-{machine}"
    loader.write_bytes(data)
    assert not bootloader.start_once(loader, machine)
    assert loader.read_bytes() == data


def test_the_loader_that_is_installed_is_known(loader: Path) -> None:
    """Of this processor; a release of another one says so in its log, and a test reads that."""
    installed = Path(PyInstaller.__file__).parent / "bootloader" / PyInstaller.PLATFORM / "run"
    loader.write_bytes(installed.read_bytes())
    assert bootloader.start_once(loader, platform.machine())
    changed = [(a, b) for a, b in zip(installed.read_bytes(), loader.read_bytes(), strict=True) if a != b]
    assert 0 < len(changed) <= 6
