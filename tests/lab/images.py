"""The images that pods of the lab run: one of busybox, which is the sandbox too, and the product's.

Rule: they are archives made here; no pod is ever pulled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.lab.host import PLUGINS, run

BUSYBOX = "localhost/lab/busybox:1"
ARCHIVE = ROOT / "build" / "image" / "archive.py"


def make_busybox(directory: Path) -> Path:
    """sh, ping, wget, nc, httpd (serving /www) ..."""
    tree, out = directory / "busybox", directory / "busybox.tar"
    for name in ("bin", "etc", "tmp", "www"):
        (tree / name).mkdir(parents=True)
    program = Path(shutil.which("busybox") or "")
    shutil.copy2(program, tree / "bin" / "busybox")
    for applet in run(program, "--list").stdout.split():
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")
    (tree / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    for_ever = ["/bin/busybox", "sleep", "2147483647"]
    run(sys.executable, ARCHIVE, out, "--name", BUSYBOX, "--tree", tree, "--env", "PATH=/bin", "--command", *for_ever)
    return out


def make_product(directory: Path) -> Path:
    """The image of the manifests, with the reference plugins that they chain."""
    out = directory / "product.tar"
    done = subprocess.run(
        [ROOT / "build" / "image" / "build.sh", out],
        capture_output=True, text=True, env={**os.environ, "CNI_PLUGINS": str(PLUGINS)},
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return out
