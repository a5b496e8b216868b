"""The images that pods of the lab run: one of busybox, which is the sandbox too, CoreDNS, what Kubernetes' end-to-end
tests run, and the product's.

Rule: they are archives made here; no pod is ever pulled.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.lab.host import BIN, has_sctp, run

BUSYBOX = "localhost/lab/busybox:1"
COREDNS = "localhost/lab/coredns:1"
AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.56"  # as test/utils/image/manifest.go of Kubernetes names it
CONFORMANCE = "registry.k8s.io/e2e-test-images/agnhost:2.45"  # as the network policy API's tests name it
_BASH = '#!/bin/sh\nexec /bin/sh "$@"\n'
_BASH_WITHOUT_SCTP = '#!/bin/sh\ncase "$*" in *"/agnhost porter"*) exec sleep 2147483647 ;; esac\nexec /bin/sh "$@"\n'
ARCHIVE = ROOT / "build" / "image" / "archive.py"


def make_busybox(directory: Path) -> Path:
    """sh, ping, wget, nc, httpd (serving /www) ..."""
    return _make(directory, BUSYBOX, ["/bin/busybox", "sleep", "2147483647"])


def make_web(directory: Path, name: str) -> Path:
    """Serves a page at port 80, under the name of somebody else's image that does so."""
    (directory / "start").write_text("#!/bin/sh\necho welcome >/www/index.html\nexec httpd -f -p 80 -h /www\n")
    (directory / "start").chmod(0o755)
    return _make(directory, name, ["/start"], directory / "start")


def make_coredns(directory: Path) -> Path:
    return _make(directory, COREDNS, ["/coredns"], BIN / "coredns")


def make_agnhost(directory: Path) -> Path:
    return _make(directory, AGNHOST, ["/agnhost", "pause"], BIN / "agnhost")


def make_conformance(directory: Path) -> Path:
    """The same program; its pods begin it by a bash, for which busybox stands. What serves SCTP alone ("porter" does)
    only waits where the kernel has none, or its pods would never be ready.
    """
    bash = _BASH if has_sctp() else _BASH_WITHOUT_SCTP
    return _make(directory, CONFORMANCE, ["/agnhost", "pause"], BIN / "agnhost", bash=bash)


def _make(directory: Path, name: str, command: Sequence[str], *programs: Path, bash: str = "") -> Path:
    """Busybox, and programs in the root directory. ``bash``: the text of one, "" for none."""
    short = name.rpartition("/")[2].partition(":")[0]
    tree, out = directory / short, directory / f"{short}.tar"
    for part in ("bin", "etc", "tmp", "www"):
        (tree / part).mkdir(parents=True)
    busybox = Path(shutil.which("busybox") or "")
    shutil.copy2(busybox, tree / "bin" / "busybox")
    for applet in run(busybox, "--list").stdout.split():
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")
    (tree / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    if bash:
        (tree / "bin" / "bash").write_text(bash)
        (tree / "bin" / "bash").chmod(0o755)
    for program in programs:
        shutil.copy2(program, tree)
    run(sys.executable, ARCHIVE, out, "--name", name, "--tree", tree, "--env", "PATH=/bin", "--command", *command)
    return out


def make_product(directory: Path) -> Path:
    """The image of the manifests, as it is released."""
    out = directory / "product.tar"
    done = subprocess.run([ROOT / "build" / "image" / "build.sh", out], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return out
