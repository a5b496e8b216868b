"""A host on an overlay: what is run in it changes nothing but one directory, which then has exactly what was changed.

Rule: a host is as it was before if that directory is empty. ``lower`` may be this machine's own root.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

_ENTER = r"""
set -eu
mount --make-rprivate /
ip link set lo up
mkdir -p "$DIR/upper" "$DIR/work" "$DIR/root"
mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$DIR/upper,workdir=$DIR/work" "$DIR/root"
cd "$DIR/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
for scratch in run tmp; do mount -t tmpfs tmpfs $scratch; done
mkdir -p run/release ${SYSTEMD:+run/systemd/system}
[ ! -d "$RELEASE" ] || mount --bind -o ro "$RELEASE" run/release
exec env -i PATH="$IN_PATH" HOME=/root chroot . ${SETTING:-} "$@"
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class FreshHost:
    """``release``: what it sees as /run/release. ``directory``: of this host's own."""

    directory: Path
    release: Path
    lower: Path = Path("/")
    environ: dict[str, str] = field(default_factory=dict)

    def run(
        self, *argv: str, systemd: bool = True, path: str = PATH, timeout_s: float = 300, **more: str
    ) -> subprocess.CompletedProcess[str]:
        self.directory.mkdir(exist_ok=True)
        command = ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh"]
        environ = {**os.environ, "DIR": str(self.directory), "LOWER": str(self.lower), "RELEASE": str(self.release)}
        environ |= {"SYSTEMD": "1" if systemd else "", "IN_PATH": path, **more}
        return subprocess.run([*command, *argv], capture_output=True, text=True, env=environ, timeout=timeout_s)

    def install(self, *words: str, systemd: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run("/run/release/install.sh", *words, systemd=systemd, **more)

    def changes(self) -> set[str]:
        """Every path that is there, is another, or is gone, because of what was run."""
        upper = self.directory / "upper"
        return {f"/{path.relative_to(upper)}" for path in upper.rglob("*") if self._is_changed(path)}

    def _is_changed(self, path: Path) -> bool:
        if path.is_symlink() or not path.is_dir():
            return True
        before = self.lower / path.relative_to(self.directory / "upper")
        return not before.is_dir() or before.stat().st_mode != path.stat().st_mode
