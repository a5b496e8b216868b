"""The executables as they are installed, but not frozen: the native front, and beside it the modules as they are."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.conftest import ROOT
from tests.fakes.front import native

MODULES = {"calico": "cni_calico.plugin.main", "calico-ipam": "cni_calico.plugin.ipam.main"}
PYTHON = """#!{python}
import sys
sys.path.insert(0, {root!r})
from {module} import main
sys.exit(main())
"""


@cache
def executables() -> Path:
    """Their directory; compiled once for these sources, whichever process needs it first."""
    digest = hashlib.sha256(f"{native.render_header()}{native.compiler_version()}{sys.executable}{PYTHON}".encode())
    for path in (Path(native.__file__), *sorted(native.SOURCE.iterdir())):
        digest.update(path.read_bytes())
    directory = ROOT / ".cache" / f"front-{digest.hexdigest()[:16]}"
    if not directory.is_dir():
        directory.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="front.", dir=directory.parent))
        _compile(made)
        try:
            os.rename(made, directory)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return directory


def _compile(directory: Path) -> None:
    directory.chmod(0o755)
    native.write_header(directory)
    for name, module in MODULES.items():
        native.compile_front(name, directory / name, directory)
        script = directory / f"{name}.python"
        script.write_text(PYTHON.format(python=sys.executable, root=str(ROOT), module=module))
        script.chmod(0o755)
