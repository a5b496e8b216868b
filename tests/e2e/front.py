"""The executables as they are installed, but not frozen: the native front, and beside it the modules as they are."""

from __future__ import annotations

import atexit
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
    """Their directory, compiled once; ask for it in the process that stays."""
    directory = Path(tempfile.mkdtemp(prefix="cni-calico-front-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    directory.chmod(0o755)
    native.write_header(directory)
    for name, module in MODULES.items():
        native.compile_front(name, directory / name, directory)
        script = directory / f"{name}.python"
        script.write_text(PYTHON.format(python=sys.executable, root=str(ROOT), module=module))
        script.chmod(0o755)
    return directory
