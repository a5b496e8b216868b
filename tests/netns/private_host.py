"""A host with a file system of its own: mounts over /etc, /opt, /usr/local, /usr/share/doc, /var and
/run that nobody else sees.

Rule: what is written there goes with the process that holds the mounts; the machine's own files are seen below, except
what Calico has there, and network namespaces that are made later. Needs overlayfs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.netns.namespaces import Namespace

_MOUNTS = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/netns
mount --rbind /run/netns /mnt/netns
for directory in etc opt usr/local usr/share/doc var; do
  own=/mnt/$directory
  mkdir -p $own/upper $own/work
  mount -t overlay overlay -o lowerdir=/$directory,upperdir=$own/upper,workdir=$own/work /$directory
done
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock
mount --rbind /mnt/netns /run/netns
rm -rf /etc/calico /etc/cni /opt/cni /usr/share/doc/cni-calico /var/lib/calico /var/lib/cni /var/log/calico
mkdir -p /etc/systemd/system
echo mounted
cat >/dev/null
"""
# Enough of systemctl for "enable --now" and "disable --now" of a unit with an environment file, as in docs/hosts.md.
_SYSTEMCTL = """#!/bin/sh
set -eu
for name; do :; done
unit=/etc/systemd/system/$name.service pid=/run/$name.pid
case $1 in
daemon-reload) exit 0 ;;
*) [ -e "$unit" ] || { echo "Unit file $name.service does not exist." >&2; exit 1; } ;;
esac
case $1 in
enable)
  environment=$(sed -n 's/^EnvironmentFile=-\\{0,1\\}//p' "$unit") command=$(sed -n 's/^ExecStart=//p' "$unit")
  settings=$(grep -v -e '^#' -e '^$' "$environment")
  # shellcheck disable=SC2086
  setsid env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin $settings $command >/var/log/journal.txt 2>&1 &
  echo $! >"$pid"
  ;;
disable)
  kill "$(cat "$pid")" 2>/dev/null || :
  while kill -0 "$(cat "$pid")" 2>/dev/null; do sleep 0.1; done
  ;;
esac
"""


class PrivateHost:
    """``ns`` is its network."""

    def __init__(self, ns: Namespace, holder: subprocess.Popen[str]) -> None:
        self.ns = ns
        self._holder = holder
        self.write("/usr/local/sbin/systemctl", _SYSTEMCTL, mode="0755")

    def run(
        self, *argv: str, stdin: str = "", check: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", f"--net={self.ns.path}"]
        environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})}
        done = subprocess.run([*enter, *argv], input=stdin, env=environ, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done

    def shell(self, script: str, directory: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A script as somebody types it there."""
        return self.run("sh", "-euc", f"cd {directory}\n{script}", check=check)

    def write(self, path: str, text: str, *, mode: str = "0644") -> None:
        self.run("sh", "-euc", 'mkdir -p "$(dirname "$0")"; cat >"$0"; chmod "$1" "$0"', path, mode, stdin=text)

    def read(self, path: str) -> str:
        return self.run("cat", path).stdout

    def exists(self, path: str) -> bool:
        return self.run("test", "-e", path, check=False).returncode == 0


@contextmanager
def private_host(ns: Namespace) -> Iterator[PrivateHost]:
    """Everything that was started there by systemctl is ended."""
    argv = ["nsenter", f"--net={ns.path}", "unshare", "--mount", "--propagation", "slave", "sh", "-euc", _MOUNTS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        try:
            assert holder.stdout.readline() == "mounted\n"
            host = PrivateHost(ns, holder)
            try:
                yield host
            finally:
                stop = 'for pid in /run/*.pid; do test ! -e "$pid" || systemctl disable "$(basename "$pid" .pid)"; done'
                host.run("sh", "-c", stop, check=False)
        finally:
            holder.stdin.close()
