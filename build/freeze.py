"""Freezes the executables into one directory: ``freeze.py DIR`` (build/build.sh is the command to use).

Rule: the name of the contents directory, ``.calico-<version>-<id>``, says what it was made from; the same sources give
the same name and, with the same Python and C library, the same bytes. What is in place already is not built again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bootloader import prepare_bootloader
from glibc import bundle_glibc
from manifest import verify_bundle, write_manifests

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ROOT / "build" / "launch"
WORK = ROOT / ".cache" / "pyinstaller"
# what decides about the bundle's bytes
SOURCES = ("build/*.py", "build/*.spec", "build/launch/*.py", "cni_calico/**/*", "pyproject.toml", "requirements.lock")
KEEP_S = 900  # longer than any one test


def executables() -> list[str]:
    return sorted(p.stem for p in LAUNCH.glob("*.py") if not p.name.startswith("_"))


def source_id() -> str:
    """Eight hex digits over all sources, the interpreter and the C library."""
    digest = hashlib.sha256()
    for path in sorted({p for pattern in SOURCES for p in ROOT.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    digest.update(f"{sys.version}\0{os.confstr('CS_GNU_LIBC_VERSION')}\0{os.uname().machine}".encode())
    return digest.hexdigest()[:8]


def source_version() -> str:
    sys.path.insert(0, str(ROOT))
    from cni_calico import __version__

    return __version__


def source_date() -> str:
    """SOURCE_DATE_EPOCH: the caller's, else a constant, because the name of the directory tells versions apart."""
    return os.environ.get("SOURCE_DATE_EPOCH") or "1577836800"


def freeze(contents: str) -> Path:
    """Run PyInstaller; the directory with the executables and their contents directory."""
    work = WORK / contents.lstrip(".")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    bootloader = prepare_bootloader(work / "bootloader", contents)
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN"]
    command += ["--workpath", str(work / "work"), "--distpath", str(work / "dist"), str(ROOT / "build" / "bundle.spec")]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": source_date(),
        "PYINSTALLER_CONFIG_DIR": str(work / "config"),
        "CALICO_BUNDLE_CONTENTS": contents,
        "CALICO_BUNDLE_BOOTLOADER": str(bootloader),
    }
    log = work / "log"
    with log.open("wb") as output:
        status = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output).returncode
    if status != 0:
        raise SystemExit(f"cannot freeze: PyInstaller failed\n{log.read_text()}")
    return work / "dist" / "bundle"


def finish(bundle: Path, contents: str) -> None:
    """Add what PyInstaller leaves out, make times and modes the same everywhere, and list every file."""
    bundle_glibc(bundle / contents, [bundle / name for name in executables()])
    write_manifests(bundle, contents, executables())
    when = int(source_date())
    for path in sorted(bundle.rglob("*"), reverse=True):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        os.utime(path, (when, when), follow_symlinks=False)


def remove_old_contents(directory: Path) -> None:
    """Every change of a source makes a contents directory: sooner than on a node, those of former builds go.

    The last one stays, and those that a test which is still running may use.
    """
    marks = sorted(directory.glob(".calico-*/superseded"), key=lambda mark: mark.stat().st_mtime)
    for mark in marks[:-1]:
        if mark.stat().st_mtime < time.time() - KEEP_S:
            shutil.rmtree(mark.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description="Freeze the executables into a directory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--print-contents", action="store_true", help="print the contents directory's name and stop")
    arguments = parser.parse_args()
    contents = f".calico-{source_version()}-{source_id()}"
    if arguments.print_contents:
        print(contents)
        return
    if verify_bundle(arguments.directory, contents, executables()):
        return
    print(f"freezing {', '.join(executables())} into {contents}")
    bundle = freeze(contents)
    finish(bundle, contents)
    subprocess.run([ROOT / "build" / "install-bundle.sh", "--plain", bundle, arguments.directory], check=True)
    shutil.rmtree(bundle.parent.parent)
    remove_old_contents(arguments.directory)


if __name__ == "__main__":
    main()
