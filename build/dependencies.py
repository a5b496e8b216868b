"""The project's dependencies: found by its import statements, frozen once, and kept until those change.

Rule: everything that a module of the project or a launcher imports is frozen, including imports inside functions; the
project's own modules never are, so changing them does not require a new analysis of everything else. What
requirements.lock does not name is left out, so nothing else that is installed beside it changes the result.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from lean import make_lean
from pyinstaller import run_pyinstaller

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "cni_calico"
LOCK = ROOT / "requirements.lock"
KEPT = 2  # the number of results kept: a change of the imports may be reverted


def find_imports(sources: list[Path]) -> list[str]:
    """The import statements for everything outside the project, each once, in order."""
    statements = set()
    for path in sources:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                statements |= {f"import {alias.name}" for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                statements |= {f"from {node.module} import {alias.name}" for alias in node.names}
    ours = (f"import {PROJECT}", f"from {PROJECT}")
    return sorted(s for s in statements if not s.startswith((*ours, "from __future__")))


def locked_names(lock: str) -> set[str]:
    """The distributions that a lock file names, normalised as PEP 503 says."""
    return {_normalised(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)}


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def unlocked_modules(lock: str) -> list[str]:
    """The top-level modules that are installed and belong only to distributions that the lock does not name."""
    locked = locked_names(lock)
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if module.isidentifier() and not locked & {_normalised(owner) for owner in owners}
    )


def freeze_dependencies(cache: Path, sources: list[Path]) -> Path:
    """A contents directory with everything except the project's own modules; do not change it."""
    script = "".join(f"{statement}\n" for statement in ["import __future__", *find_imports(sources)])
    digest = hashlib.sha256(f"{script}\0{sys.version}\0{os.confstr('CS_GNU_LIBC_VERSION')}".encode())
    made_by = (f"build/{name}" for name in ("dependencies.spec", "dependencies.py", "lean.py", "pyinstaller.py"))
    for name in ("requirements.lock", *made_by):
        digest.update((ROOT / name).read_bytes())
    kept = cache / f"dependencies-{digest.hexdigest()[:16]}"
    if not kept.is_dir():
        work = cache / "dependencies.new"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        (work / "imports.py").write_text(script)
        unlocked = " ".join(unlocked_modules(LOCK.read_text()))
        found = run_pyinstaller("dependencies", work, imports=work / "imports.py", unlocked=unlocked)
        make_lean(found / "contents")
        (found / "contents").rename(kept)
        shutil.rmtree(work)
    kept.touch()
    for old in sorted(cache.glob("dependencies-*"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old)
    return kept
