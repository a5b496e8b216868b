"""Freezes the executables into one directory: ``freeze.py DIR`` (build/build.sh is the command to use).

Rule: the name of the contents directory, ``.calico-<version>-<id>``, identifies what it was made from; the same sources
give the same name and, with the same Python and C library, the same bytes. A bundle that exists already is not built
again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from bootloader import prepare_bootloader
from dependencies import freeze_dependencies
from expand import drop_docstrings, expand, inherited
from filelock import FileLock
from glibc import bundle_glibc
from lean import drop_annotations, without_columns
from manifest import verify_bundle, write_manifests
from native import NAMES as FRONTS
from native import compile_front, compiler_version, write_header
from pack import write_packs
from plugin_needs import write_unneeded
from pyinstaller import run_pyinstaller, source_date
from share import write_share

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ROOT / "build" / "launch"
WORK = ROOT / ".cache" / "pyinstaller"
CACHE = ROOT / ".cache" / "dependencies"
LOCK = ROOT / ".cache" / "build.lock"
# what determines the bundle's bytes
SOURCES = (
    "build/*.py",
    "build/*.spec",
    "build/front/*",
    "build/launch/*.py",
    "cni_calico/**/*",
    "install/systemd/*.service",
    "requirements.lock",
)
UNITS = Path("install/systemd")
KEEP_S = 900  # longer than any one test


def executables() -> list[str]:
    """In the order of their installation: an executable that another one executes comes first."""
    return [*sorted(p.stem for p in LAUNCH.glob("*.py") if not p.name.startswith("_")), *FRONTS]


def modules() -> list[Path]:
    """The project's own modules."""
    return sorted((ROOT / "cni_calico").rglob("*.py"))


def source_id() -> str:
    """Eight hex digits of a hash over all sources and the versions of interpreter, C library and compiler; not of the
    processor, so a release has one name on all of them.
    """
    digest = hashlib.sha256()
    for path in sorted({p for pattern in SOURCES for p in ROOT.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    digest.update(f"{sys.version}\0{os.confstr('CS_GNU_LIBC_VERSION')}\0{compiler_version()}".encode())
    return digest.hexdigest()[:8]


def source_version() -> str:
    sys.path.insert(0, str(ROOT))
    from cni_calico import __version__

    return __version__


def freeze(contents: str) -> Path:
    """The directory with the executables and their contents directory."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    dependencies = freeze_dependencies(CACHE, [*modules(), *LAUNCH.glob("*.py")])
    bootloader = prepare_bootloader(WORK / "bootloader", contents)
    bundle = run_pyinstaller("executables", WORK, contents=contents, bootloader=bootloader)
    write_header(WORK / "front")
    for front in FRONTS:
        compile_front(front, bundle / front, WORK / "front")
    shutil.copytree(dependencies, bundle / contents, symlinks=True, dirs_exist_ok=True)
    for path in modules():
        name = path.relative_to(ROOT)
        compiled = (bundle / contents / name).with_suffix(".pyc")
        compiled.parent.mkdir(parents=True, exist_ok=True)
        compiled.write_bytes(compile_module(path, str(name), contents))
    write_share(bundle / contents / "share")
    (bundle / contents / UNITS).mkdir(parents=True)
    for pattern in ("*.service", "*.socket"):  # calicoctl node init installs them
        for unit in (ROOT / UNITS).glob(pattern):
            shutil.copy(unit, bundle / contents / UNITS)
    write_packs(bundle / contents)
    write_unneeded(bundle / contents)
    return bundle


@cache
def _bases() -> frozenset[str]:
    return inherited(path.read_text() for path in (ROOT / "cni_calico").rglob("*.py"))


def compile_module(path: Path, name: str, contents: str = "") -> bytes:
    """A .pyc file that is never compared with its source: it contains no time stamp, no path of this machine, no
    asserts, no docstrings, and nothing else that only readers need (lean.py). The one that holds the version gets the
    id of the bundle, the end of its ``contents`` directory's name.
    """
    source = path.read_bytes()
    if contents and name == "cni_calico/__init__.py":
        unset, known = b'\nBUILD = ""', f'\nBUILD = "+{contents.rpartition("-")[2]}"'.encode()
        if source.count(unset) != 1:
            raise SystemExit(f"cannot write the bundle's id into {name}: it has no line BUILD")
        source = source.replace(unset, known)
    tree = drop_annotations(drop_docstrings(expand(source.decode(), _bases())))
    code = without_columns(compile(tree, name, "exec", dont_inherit=True, optimize=1))
    unchecked = (1).to_bytes(4, "little")  # PEP 552
    return importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source) + marshal.dumps(code)


def finish(bundle: Path, contents: str) -> None:
    """Add what PyInstaller leaves out, set the same times and modes everywhere, and list every file."""
    bundle_glibc(bundle / contents, [bundle / name for name in executables()])
    write_manifests(bundle, contents, executables())
    when = int(source_date())
    for path in sorted(bundle.rglob("*"), reverse=True):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (when, when), follow_symlinks=False)


def remove_old_contents(directory: Path) -> None:
    """Remove the contents directories of former builds: every change of a source makes one.

    The last one stays, and those that a running test may use.
    """
    marks = sorted(directory.glob(".calico-*/superseded"), key=lambda mark: mark.stat().st_mtime)
    for mark in marks[:-1]:
        if mark.stat().st_mtime < time.time() - KEEP_S:
            shutil.rmtree(mark.parent)


def contents_name() -> str:
    return f".calico-{source_version()}-{source_id()}"


def build(directory: Path) -> None:
    """Build into a directory unless it exists already; build again if a source was edited meanwhile."""
    while not verify_bundle(directory, contents := contents_name(), executables()):
        print(f"freezing {', '.join(executables())} into {contents}", flush=True)
        bundle = freeze(contents)
        finish(bundle, contents)
        if contents == contents_name():
            subprocess.run([ROOT / "build" / "install-bundle.sh", "--plain", bundle, directory], check=True)
            remove_old_contents(directory)
        shutil.rmtree(WORK)


def main() -> None:
    parser = argparse.ArgumentParser(description="Freeze the executables into a directory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--print-contents", action="store_true", help="print the contents directory's name and stop")
    arguments = parser.parse_args()
    if arguments.print_contents:
        print(contents_name())
        return
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    # tests that need the executables may ask for them at the same time
    with FileLock(LOCK):
        build(arguments.directory)


if __name__ == "__main__":
    main()
