"""Names of BIRD 1.6's second daemon that tools still use, bird6.ctl and bird6.cfg, as links to the files of our BIRD.

Rule: anything at such a name that is not our link (a socket or file of upstream's) is replaced, unless a daemon answers
there; a failure costs only the link.
"""

from __future__ import annotations

import os

from cni_calico.directories import BIRD_SOCKET
from cni_calico.log import Log
from cni_calico.nodeagent.bgp.bird.adoption import SECOND_SOCKET, answers
from cni_calico.regular import make_directories

SOCKET, CONFIG = (SECOND_SOCKET, BIRD_SOCKET), ("bird6.cfg", "bird.cfg")


def ensure_links(run_dir: str, config_dir: str, log: Log) -> None:
    """Make both links, unless they exist."""
    for directory, (name, target) in ((run_dir, SOCKET), (config_dir, CONFIG)):
        path = f"{directory}/{name}"
        try:
            if os.path.islink(path) and os.readlink(path) == target:
                continue
            if name == SECOND_SOCKET and os.path.exists(path) and answers(path):
                continue
            make_directories(directory, 0o755)
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(target, path)
        except OSError as e:
            log.warning(f"cannot make the link {path}: {e.strerror or e}")
