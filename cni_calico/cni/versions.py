"""PURE: the CNI versions, and the verbs that each of them has."""

from __future__ import annotations

SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CURRENT = "1.1.0"
WHEN_ABSENT = "0.2.0"
SINCE = {"CHECK": "0.4.0", "STATUS": "1.1.0", "GC": "1.1.0"}
VERSION_ANSWER = '{"cniVersion":"%s","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}'


def allows(version: str, command: str) -> bool:
    """Whether a configuration of ``version`` may be asked for ``command``. ``version`` must be a supported one."""
    return SUPPORTED.index(version) >= SUPPORTED.index(SINCE.get(command, "0.1.0"))
