"""Debian packages of a bundle: what is where, who depends on whom, and what happens when one is installed.

Rule: one package has the bundle; the others are links to it, units and settings. The same tree gives the same bytes,
which every dpkg since Debian 11's can read. What only some of a package's users need is recommended, not required.
dpkg removes the former version's files while processes still load modules from them. So what it owns, below
/usr/share/cni-calico, is used by nobody: install-bundle.sh links it into /usr/lib/cni-calico, where the contents that
calls began with stay until the next upgrade, at least for a day.

``cni-calico-bundle``        the executables and their contents directory; documentation
``calico-cni``               calico and calico-ipam where runtimes look for plugins; calico-cni.service; netavark; the
                             reference plugins, where ``calicoctl node init`` finds those that the host lacks
``calico-node``              the agent: calico-node.service with its boot table, and /etc/calico/calico-node.env
``calico-docker``            Docker's drivers: calico-docker.service with its sockets, and /etc/calico/calico-docker.env
``calico-kube-controllers``  calico-kube-controllers.service and its settings
``calicoctl``                with kubectl-calico, its manual page and completions
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from edition import Edition

ROOT = Path(__file__).resolve().parent.parent.parent
BUNDLE = "cni-calico-bundle"
LIBRARY = "usr/lib/cni-calico"
OWNED = "usr/share/cni-calico"  # dpkg's; an installed bundle is made of it
PLUGINS = ("calico", "calico-ipam")
PLUGIN_DIRECTORIES = ("opt/cni/bin", "usr/lib/cni")  # containerd's and CRI-O's; podman's on Debian
NETAVARK_DIRECTORY = "usr/libexec/netavark"
# of the CNI project; /opt/cni/bin and /usr/lib/cni have those of other packages
REFERENCE_DIRECTORY = "usr/libexec/cni-calico"
MAINTAINER = "cni-calico <cni-calico@localhost>"

_BUNDLE_POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
  /{owned}/install-bundle.sh --linked /{owned}/bin /{library}
fi
"""
_BUNDLE_POSTRM = """#!/bin/sh
set -e
case $1 in remove | purge) rm -rf /{library} ;; esac
"""
_POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # after an upgrade: the new program, where the unit runs
  if [ -n "$2" ]; then systemctl try-restart {unit}; fi
fi
"""
# it used to come with 0644, and dpkg gives a new version the old one's mode; a file that an administrator has closed to
# others, or has put under dpkg-statoverride, stays as it is
_CLOSED = """
if [ "$1" = configure ]; then
  file={settings}
  if [ -f "$file" ] && [ ! -L "$file" ] && [ -n "$(find "$file" -perm /007)" ] &&
    ! dpkg-statoverride --list "$file" >/dev/null; then
    chmod o= "$file"
    if [ "$(stat -c %g "$file")" = 0 ]; then chmod g= "$file"; fi
  fi
fi
"""
_PRERM = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now {unit}
fi
"""
# what was loaded when the host started would stay, and nobody would be there to take it away
_OPENED = """
if [ "$1" = remove ]; then /{library}/calicoctl node boot-table off || :; fi
"""
_POSTRM = """#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""


@dataclass(frozen=True)
class Package:
    """``fill`` writes the files below the package's root."""

    name: str
    summary: str
    text: str
    fill: Callable[[Path, Path], None]
    depends: tuple[str, ...] = ()
    recommends: tuple[str, ...] = ()
    unit: str = ""
    has_settings: bool = False
    fields: dict[str, str] = field(default_factory=dict)


def _bundle(root: Path, release: Path) -> None:
    owned = root / OWNED
    owned.mkdir(parents=True)
    shutil.copy(release / "install-bundle.sh", owned)
    shutil.copytree(release / "bin", owned / "bin", symlinks=True)
    shutil.copytree(release / "docs", root / "usr/share/doc/cni-calico")
    for page in ("README.md", "CHANGELOG.md", "NOTICE"):
        shutil.copy(release / page, root / "usr/share/doc/cni-calico")


def _cni(root: Path, release: Path) -> None:
    for directory in PLUGIN_DIRECTORIES:
        for name in PLUGINS:
            _link(root / directory / name, f"/{LIBRARY}/{name}")
    # its name is the driver's
    _link(root / NETAVARK_DIRECTORY / "calico", f"/{LIBRARY}/calico-netavark")
    shutil.copytree(release / "plugins", root / REFERENCE_DIRECTORY)
    _unit(root, release, "calico-cni")


def _node(root: Path, release: Path) -> None:
    _link(root / "usr/bin/calico-node", f"/{LIBRARY}/calico-node")
    _unit(root, release, "calico-node")
    _unit(root, release, "calico-boot-table")
    _settings(root, release, "calico-node")


def _docker(root: Path, release: Path) -> None:
    _link(root / "usr/bin/calico-docker", f"/{LIBRARY}/calico-docker")
    _unit(root, release, "calico-docker")
    _unit(root, release, "calico-docker", "socket")
    _settings(root, release, "calico-docker")


def _controllers(root: Path, release: Path) -> None:
    _link(root / "usr/bin/calico-kube-controllers", f"/{LIBRARY}/calico-kube-controllers")
    _unit(root, release, "calico-kube-controllers")
    _settings(root, release, "calico-kube-controllers")


def _calicoctl(root: Path, release: Path) -> None:
    _link(root / "usr/bin/calicoctl", f"/{LIBRARY}/calicoctl")
    _link(root / "usr/bin/kubectl-calico", "calicoctl")
    (share,) = (release / "bin").glob(".calico-*/share")
    shutil.copytree(share, root / "usr/share", dirs_exist_ok=True)
    zsh = root / "usr/share/zsh"
    if (zsh / "site-functions").exists():  # the distribution's directory; site-functions is the administrator's
        (zsh / "site-functions").rename(zsh / "vendor-completions")
    for page in (root / "usr/share/man").rglob("*.1"):
        page.with_name(page.name + ".gz").write_bytes(_zipped(page.read_bytes()))
        page.unlink()


PACKAGES = (
    Package(
        BUNDLE,
        "Calico for containers in Python: the executables",
        "The CNI plugin, IPAM, node agent, controllers and calicoctl, with the Python\n interpreter"
        " and libraries that they run on.",
        _bundle,
    ),
    Package(
        "calico-cni",
        "Calico's CNI plugins calico and calico-ipam",
        "In the plugin directories of containerd, CRI-O and podman, and as a driver of\n"
        " podman's netavark; with a unit for the CNI server alone, and the CNI project's\n"
        " reference plugins for hosts that lack them.",
        _cni,
        unit="calico-cni",
    ),
    Package(
        "calico-node",
        "Calico's node agent: routes, tunnels, network policy, BGP",
        "Runs on every node of a cluster, or on one host with an embedded datastore.",
        _node,
        depends=("calico-cni (= {version})", "nftables", "iptables", "ipset", "iproute2", "kmod"),
        recommends=("bird2 (>= 2.0.12)",),  # for BGP; Ubuntu 22.04 has an older one
        unit="calico-node",
        has_settings=True,
    ),
    Package(
        "calico-docker",
        "Calico's network and IPAM driver for Docker",
        "Networks, addresses and policies of Calico for docker run and compose; with an\n"
        " embedded datastore on one host, or etcd on several.",
        _docker,
        depends=("nftables", "iproute2"),
        recommends=("calico-node (= {version})",),  # who enforces policies
        unit="calico-docker",
        has_settings=True,
    ),
    Package(
        "calico-kube-controllers",
        "Calico's controllers for Kubernetes with etcd",
        "Copies policies, namespaces and labels into etcd and cleans up; for clusters\n"
        " that do not run it as a Deployment.",
        _controllers,
        unit="calico-kube-controllers",
        has_settings=True,
    ),
    Package(
        "calicoctl",
        "command line of Calico",
        "Resources, address management, policy questions and node status; also as\n kubectl's plugin kubectl-calico.",
        _calicoctl,
    ),
)


def build_packages(release: Path, out: Path, scratch: Path, edition: Edition) -> list[Path]:
    """The .deb files of the tree that becomes the tarball."""
    return [_build(package, release, out, scratch / package.name, edition) for package in PACKAGES]


def _build(package: Package, release: Path, out: Path, root: Path, edition: Edition) -> Path:
    epoch = edition.epoch
    root.mkdir(parents=True)
    package.fill(root, release)
    document = root / "usr/share/doc" / package.name
    document.mkdir(parents=True, exist_ok=True)
    (document / "copyright").write_text(_copyright(package.name))
    (document / "changelog.gz").write_bytes(_zipped((release / "CHANGELOG.md").read_bytes()))
    (document / "changelog.Debian.gz").write_bytes(_zipped(_changelog(package.name, edition).encode()))
    control = root / "DEBIAN"
    control.mkdir()
    _control_files(package, root, control, edition)
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(_mode(path))
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    file = out / f"{package.name}_{edition.version}_{edition.architecture}.deb"
    # z9: what the packs repeat of the modules lies farther back than another level looks; who unpacks it needs 65 MB
    command = ["dpkg-deb", "--root-owner-group", "--threads-max=1", "-Zxz", "-z9", "--build", str(root), str(file)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return file


def _mode(path: Path) -> int:
    """Settings contain passwords, and paths of keys."""
    if path.is_dir() or path.stat().st_mode & 0o111:
        return 0o755
    return 0o600 if path.suffix == ".env" else 0o644


def _control_files(package: Package, root: Path, control: Path, edition: Edition) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and control not in path.parents)
    names = {path: str(path.relative_to(root)) for path in files}
    depends = [text.format(version=edition.version) for text in package.depends]
    if package.name != BUNDLE:
        depends.insert(0, f"{BUNDLE} (= {edition.version})")
    fields = {
        "Package": package.name,
        "Version": edition.version,
        "Architecture": edition.architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(sum((path.lstat().st_size + 1023) // 1024 for path in files)),
        "Depends": ", ".join(depends),
        "Recommends": ", ".join(text.format(version=edition.version) for text in package.recommends),
        "Section": "net",
        "Priority": "optional",
        "Description": f"{package.summary}\n {package.text}",
    }
    (control / "control").write_text("".join(f"{name}: {text}\n" for name, text in fields.items() if text))
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {names[path]}" for path in files if not path.is_symlink()]
    (control / "md5sums").write_text("".join(f"{line}\n" for line in sums))
    if settings := [f"/{name}" for name in names.values() if name.startswith("etc/")]:
        (control / "conffiles").write_text("".join(f"{name}\n" for name in settings))
    for name, text in _scripts(package).items():
        (control / name).write_text(text)
        (control / name).chmod(0o755)


def _scripts(package: Package) -> dict[str, str]:
    """What dpkg runs, by the names that it knows."""
    if package.name == BUNDLE:
        texts = {"postinst": _BUNDLE_POSTINST, "postrm": _BUNDLE_POSTRM}
        return {name: text.format(owned=OWNED, library=LIBRARY) for name, text in texts.items()}
    texts = {"postinst": _POSTINST, "prerm": _PRERM, "postrm": _POSTRM} if package.unit else {}
    scripts = {name: text.format(unit=f"{package.unit}.service") for name, text in texts.items()}
    if package.name == "calico-docker":
        scripts["prerm"] = _PRERM.format(unit="calico-docker.socket calico-docker.service")
    if package.name == "calico-node":
        scripts["prerm"] += _OPENED.format(library=LIBRARY)
    if package.has_settings:
        scripts["postinst"] += _CLOSED.format(settings=_settings_of(package.name))
    return scripts


def _settings_of(name: str) -> str:
    return f"/etc/calico/{name}.env"


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _unit(root: Path, release: Path, name: str, kind: str = "service") -> None:
    """The unit, with the directory of the packages."""
    source = (release / "install/systemd" / f"{name}.{kind}").read_text()
    target = root / "lib/systemd/system" / f"{name}.{kind}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(source.replace("/opt/cni/bin/", f"/{LIBRARY}/"))


def _settings(root: Path, release: Path, name: str) -> None:
    target = root / _settings_of(name).lstrip("/")
    target.parent.mkdir(parents=True)
    shutil.copy(release / "install/systemd" / f"{name}.env", target)


def _copyright(name: str) -> str:
    theirs = {
        BUNDLE: f"The interpreter and libraries below /{LIBRARY} have licences of their own",
        "calico-cni": f"The reference plugins in /{REFERENCE_DIRECTORY} are the CNI project's",
    }.get(name)
    return (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        "Upstream-Name: cni-calico\n\n"
        "Files: *\n"
        "Copyright: the authors of cni-calico\n"
        "License: Apache-2.0\n"
        " On Debian systems its text is in /usr/share/common-licenses/Apache-2.0.\n"
        + (f"Comment:\n {theirs}: see\n /usr/share/doc/cni-calico/NOTICE.\n" if theirs else "")
    )


def _changelog(name: str, edition: Edition) -> str:
    date = format_datetime(datetime.fromtimestamp(edition.epoch, UTC))
    return f"{name} ({edition.version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {MAINTAINER}  {date}\n"


def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)
