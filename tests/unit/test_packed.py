"""What is imported from a pack is what its files would give, and a pack that cannot be used is none."""

from __future__ import annotations

import importlib.util
import marshal
import subprocess
import sys
from pathlib import Path

import pack
import pytest

from cni_calico import packed

PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from cni_calico.packed import use_pack
sys.path.insert(0, {contents!r})
use_pack({contents!r}, "program")
import outer.inner as inner, plain, late
print(inner.NAME, inner.__file__, inner.__package__, plain.__spec__.origin, sys.modules["outer"].__path__)
print(type(inner.__loader__).__name__, type(plain.__loader__).__name__, type(late.__loader__).__name__)
"""
ROOT = Path(packed.__file__).parents[1]


def compile_to(contents: Path, name: str, text: str) -> None:
    path = contents / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".pyc").write_bytes(
        importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(text, name, "exec"))
    )


@pytest.fixture
def contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    compile_to(tmp_path, "outer/__init__.py", "from . import beside\n")
    compile_to(tmp_path, "outer/beside.py", "from .inner import NAME\n")
    compile_to(tmp_path, "outer/inner.py", "import os, plain\nNAME = __name__\n")
    compile_to(tmp_path, "plain.py", "def f():\n    import late\n")
    compile_to(tmp_path, "late.py", "")
    monkeypatch.setattr(pack, "STARTS", {"program": ("outer.beside",)})
    pack.write_packs(tmp_path)
    return tmp_path


def run(contents: Path) -> subprocess.CompletedProcess[str]:
    text = PROGRAM.format(root=str(ROOT), contents=str(contents))
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)


def test_what_heads_import_is_packed(contents: Path) -> None:
    """Relative imports and submodules too; what a function imports, and what is frozen or built in, is not."""
    found = pack.select_modules(contents, ("outer.beside",))
    assert sorted(found) == ["outer", "outer.beside", "outer.inner", "plain"]
    with pytest.raises(SystemExit, match="cannot pack none"):
        pack.select_modules(contents, ("none",))


def test_modules_come_from_the_pack(contents: Path) -> None:
    """As if from their files, which need not be read any more."""
    for path in ("outer/inner.pyc", "plain.pyc"):
        (contents / path).write_bytes(b"damaged")
    done = run(contents)
    assert (done.returncode, done.stderr) == (0, "")
    inner, plain = contents / "outer/inner.pyc", contents / "plain.pyc"
    assert done.stdout.splitlines() == [
        f"outer.inner {inner} outer {plain} ['{contents / 'outer'}']",
        "PackedModules PackedModules SourcelessFileLoader",
    ]


@pytest.mark.parametrize("damage", ["absent", "empty", "cut"])
def test_without_a_usable_pack_files_are_read(contents: Path, damage: str) -> None:
    file = contents / "packs/program"
    content = file.read_bytes()
    file.unlink()
    if damage != "absent":
        file.write_bytes(content[:20] if damage == "cut" else b"")
    done = run(contents)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == " ".join(["SourcelessFileLoader"] * 3)


def test_damaged_code_is_an_import_error(contents: Path) -> None:
    file = contents / "packs/program"
    file.write_bytes(file.read_bytes()[:-200])
    done = run(contents)
    assert done.returncode == 1 and "ImportError: cannot import" in done.stderr
