"""Which version a plugin of others is, by what it prints, and whether the image's may take its place on the host.

Rule: only what says that it is older is replaced. What does not say its version may be a patched one, or serve another
network of the host.
"""

from __future__ import annotations

import re

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.process import run

Version = tuple[int, int, int]

ANSWER_TIMEOUT_S = 10.0
ANSWER_LIMIT_BYTES = 64 * 1024
# what the reference plugins print when they are started by hand; "unknown" where the builder has not named a version
_ANSWER = re.compile(rb"CNI [\w.-]+ plugin (?:version )?v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?![\d.])")


def parse_version(answer: bytes) -> Version | None:
    """None if no version is said. A distribution's suffix (``-k3s1``) does not count."""
    found = _ANSWER.search(answer)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def read_version(path: str) -> Version | None:
    """What the plugin says when it is started without a command; None also if it cannot be started."""
    try:
        done = run([path], env={}, deadline=Deadline.after(ANSWER_TIMEOUT_S), limit_bytes=ANSWER_LIMIT_BYTES)
    except CalicoError:
        return None
    return parse_version(done.stderr) or parse_version(done.stdout)


def reason_to_stay(host: Version | None, ours: Version | None) -> str:
    """Why the host's plugin is not replaced; "" if it is older."""
    if host is None:
        return "it does not say which version it is"
    if ours is None:
        return f"it is {_text(host)}, and the image's does not say which version it is"
    if host >= ours:
        return f"it is {_text(host)}, the image's {_text(ours)}"
    return ""


def _text(version: Version) -> str:
    return "v" + ".".join(map(str, version))
