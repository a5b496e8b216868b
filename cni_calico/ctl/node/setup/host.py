"""The host as ``node init`` and ``node uninstall`` see it: what is installed, and systemd.

Rule: nothing here is written; programs are asked, and told to start or stop what has been written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cni_calico.ctl.node.setup import units
from cni_calico.ctl.node.setup.plan import PORTMAP, SetupFacts
from cni_calico.ctl.session import CommandFailed
from cni_calico.deadline import Deadline
from cni_calico.directories import CNI_BIN_DIR, REFERENCE_PLUGIN_DIRS
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.programs import ENVIRONMENT, find_program
from cni_calico.kernel.process import Completed, run

_PACKAGED = ("/lib/systemd/system", "/usr/lib/systemd/system")
_SYSTEMD = "/run/systemd/system"
_ASK_S = 30.0


def executables() -> str:
    """The directory of our executables: that of this one."""
    own = os.path.dirname(os.path.realpath(sys.executable))
    return own if os.path.exists(f"{own}/calicoctl") else CNI_BIN_DIR


def read_facts() -> SetupFacts:
    """Without those about podman. Raises CommandFailed if calico-node is not installed here, KernelError."""
    directory = executables()
    for name in ("calico-node", "calico", "calicoctl"):
        if not os.access(f"{directory}/{name}", os.X_OK):
            raise CommandFailed(
                f"cannot set this host up: there is no {directory}/{name}",
                details="install the packages, or build/install-bundle.sh's bundle, first",
            )
    packaged = any(os.path.exists(f"{place}/{units.NODE}") for place in _PACKAGED)
    wanted = () if packaged else (units.BOOT_TABLE, units.NODE)
    docker = bool(find_program("dockerd")) and os.access(f"{directory}/calico-docker", os.X_OK)
    if docker and not any(os.path.exists(f"{place}/{units.DOCKER}") for place in _PACKAGED):
        wanted = (*wanted, units.DOCKER_SOCKET, units.DOCKER)
    portmap = next((place for place in REFERENCE_PLUGIN_DIRS if os.access(f"{place}/{PORTMAP}", os.X_OK)), "")
    return SetupFacts(
        directory,
        {name: units.read_unit(name, directory) for name in wanted},
        units.RUNTIMES,
        portmap=os.path.realpath(f"{portmap}/{PORTMAP}") if portmap else "",  # the link may be ours
        has_bird=bool(find_program("bird")),
        has_command=_finds_command(directory),
        docker=docker,
    )


def _finds_command(directory: str) -> bool:
    """Whether a package has put calicoctl where shells look, or its directory is one of those."""
    found = find_program("calicoctl")
    return bool(found) and os.path.realpath(found) == f"{directory}/calicoctl" and not found.startswith("/usr/local/")


def require_systemd() -> None:
    """Raises CommandFailed."""
    if not os.path.isdir(_SYSTEMD) or not find_program("systemctl"):
        raise CommandFailed(
            "cannot set this host up: it is not run by systemd",
            details="--dry-run shows the files; docs/node.md says how calico-node is run without systemd",
        )


def require_root() -> None:
    """Raises CommandFailed."""
    if os.geteuid() != 0:
        raise CommandFailed("cannot change this host: it takes root")


def ask(argv: Sequence[str], timeout_s: float = _ASK_S) -> Completed:
    """Run a program. Raises KernelError, DeadlineExceeded."""
    return run(argv, env={**ENVIRONMENT, "HOME": "/root"}, deadline=Deadline.after(timeout_s))


def systemctl(*words: str, timeout_s: float = 120.0) -> None:
    """Raises KernelError with its own words."""
    done = ask([find_program("systemctl"), *words], timeout_s)
    if done.rc:
        said = done.stderr.decode(errors="replace").strip() or f"it ended with status {done.rc}"
        raise KernelError(f"cannot run systemctl {' '.join(words)}: {said}")


def has_unit(unit: str) -> bool:
    return ask([find_program("systemctl"), "cat", unit]).rc == 0


def is_active(unit: str) -> bool:
    """Whether it runs, or is being started."""
    done = ask([find_program("systemctl"), "is-active", unit])
    return done.stdout.strip() in (b"active", b"activating", b"reloading")
