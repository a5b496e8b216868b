"""Whoever sets an executable's environment does not thereby choose the code that it runs: variables of Python, of the
boot loader and of the dynamic linker. Only LD_PRELOAD and LD_AUDIT do, where the dynamic linker is used at all.
"""

from __future__ import annotations

import json
import os
import py_compile
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.calls.test_bundle import UNCLEAR

pytestmark = pytest.mark.bundle

EVIL = "import os\nopen(os.environ['MARK'], 'a').close()\nclass Evil(Warning): pass\n"
# of a shared object: it runs when it is loaded
EVIL_C = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { open(getenv("MARK"), O_CREAT | O_WRONLY, 0600); }
"""
COMMANDS = {
    "calicoctl": (["version", "--client"], "", {}),
    "calico-node": (["-v"], "", {}),
    "calico": ([], UNCLEAR, {"CNI_COMMAND": "VERSION"}),
}
PYTHONS = ("sitecustomize", "usercustomize", "json", "evil", "cni_calico")


@pytest.fixture(scope="module")
def programs(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a host has it, with its own dynamic linker."""
    directory = tmp_path_factory.mktemp("programs")
    subprocess.run([ROOT / "build" / "install-bundle.sh", bundle, directory], check=True, timeout=120)
    return directory


@pytest.fixture(scope="module")
def foreign(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules in a place of their own, and a copy of the contents with one module replaced."""
    directory = tmp_path_factory.mktemp("foreign")
    for name in PYTHONS:
        (directory / f"{name}.py").write_text(EVIL)
    [contents] = programs.glob(".calico-*")
    copy = directory / contents.name
    shutil.copytree(contents, copy, symlinks=True)
    target = copy / "cni_calico" / "__init__.pyc"
    assert target.exists()
    py_compile.compile(str(directory / "evil.py"), str(target), doraise=True)
    return directory


def variables(foreign: Path, programs: Path, program: str) -> dict[str, dict[str, str]]:
    copy, here = str(next(foreign.glob(".calico-*"))), str(foreign)
    file = str(programs / ("calico.python" if program == "calico" else program))
    return {
        "the path of modules": {"PYTHONPATH": f"{here}:{copy}"},
        "Python's home": {"PYTHONHOME": here, "PYTHONPLATLIBDIR": here},
        "what runs first or last": {"PYTHONSTARTUP": f"{here}/evil.py", "PYTHONINSPECT": "1", "PYTHONUSERBASE": here},
        "a category of warnings": {"PYTHONWARNINGS": "error::evil.Evil", "PYTHONPATH": here},
        "the old boot loader's": {"_MEIPASS2": copy},
        "the boot loader's": {
            "_PYI_APPLICATION_HOME_DIR": copy,
            "_PYI_ARCHIVE_FILE": file,
            "_PYI_PARENT_PROCESS_LEVEL": "1",
        },
        "the boot loader's, of a deeper child": {
            "_PYI_APPLICATION_HOME_DIR": copy,
            "_PYI_ARCHIVE_FILE": file,
            "_PYI_PARENT_PROCESS_LEVEL": "2",
            "PYINSTALLER_RESET_ENVIRONMENT": "0",
        },
    }


@pytest.mark.parametrize("program", sorted(COMMANDS))
def test_no_variable_of_python_or_the_boot_loader_loads_other_code(
    programs: Path, foreign: Path, tmp_path: Path, program: str
) -> None:
    for what, environ in variables(foreign, programs, program).items():
        mark = tmp_path / "mark"
        done = execute(programs, program, mark, environ)
        assert not mark.exists(), what
        assert "Traceback" not in done.stderr, what


def execute(programs: Path, program: str, mark: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    arguments, stdin, own = COMMANDS[program]
    environ = {"PATH": os.environ["PATH"], "MARK": str(mark), **own, **environ}
    return subprocess.run(
        [programs / program, *arguments], input=stdin, env=environ, capture_output=True, text=True, timeout=60
    )


def test_the_modules_would_have_run(programs: Path, foreign: Path, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "MARK": str(tmp_path / "mark"), "PYTHONPATH": str(foreign)}
    subprocess.run(["python3", "-c", "import evil"], env=environ, check=True, timeout=60)
    assert (tmp_path / "mark").exists()
    shutil.copy(programs / "calicoctl", foreign)  # beside the copy of the contents
    execute(foreign, "calicoctl", tmp_path / "other", {})
    assert (tmp_path / "other").exists()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("library")
    (directory / "evil.c").write_text(EVIL_C)
    argv = ["gcc", "-shared", "-fPIC", "-o", directory / "libz.so.1", directory / "evil.c"]
    subprocess.run(argv, check=True, timeout=60)
    return directory


@pytest.mark.parametrize("program", sorted(COMMANDS))
def test_the_librarys_path_is_the_bundles_own(programs: Path, library: Path, tmp_path: Path, program: str) -> None:
    """DT_RPATH comes before LD_LIBRARY_PATH, and names the contents."""
    for name in ("libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6"):
        (library / name).unlink(missing_ok=True)
        (library / name).symlink_to("libz.so.1")
    done = execute(programs, program, tmp_path / "mark", {"LD_LIBRARY_PATH": str(library)})
    assert not (tmp_path / "mark").exists() and done.returncode == 0, done.stderr


def test_what_answers_a_runtime_uses_no_dynamic_linker(programs: Path, library: Path, tmp_path: Path) -> None:
    environ = {"MARK": str(tmp_path / "mark"), "CNI_COMMAND": "VERSION", "LD_PRELOAD": str(library / "libz.so.1")}
    done = subprocess.run(
        [programs / "calico"], input='{"cniVersion":"1.0.0"}', env=environ, capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout)["cniVersion"] == "1.0.0" and not (tmp_path / "mark").exists()


def test_no_file_of_the_bundle_names_another_directory(programs: Path) -> None:
    """Where a dynamic linker looks: beside the file, or in the contents."""
    files = [path for path in programs.rglob("*") if path.is_file() and not path.is_symlink()]
    [contents], found = programs.glob(".calico-*"), set()
    for path in files:
        if path.read_bytes()[:4] == b"\x7fELF":
            said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
            for text in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", said):
                found |= set(text.split(":"))
    assert found and all(part.startswith(("$ORIGIN", str(contents))) for part in found), found
