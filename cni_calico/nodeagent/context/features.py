"""PURE: the parameter FeatureDetectOverride: what the kernel can do, said by somebody who knows better.

Rule: names are exact, as upstream's; each entry that is wrong is left out, and named, and the others count. Three have
an effect here; the others are about programs and kernels that this agent does not ask.
"""

from __future__ import annotations

from cni_calico.daemon.settings_table import Kind, parse_flag

Features = tuple[tuple[str, bool], ...]
SNAT_RANDOM, MASQUERADE_RANDOM, CHECKSUM_BROKEN = "SNATFullyRandom", "MASQFullyRandom", "ChecksumOffloadBroken"
_OTHERS = (
    "RestoreSupportsLock",
    "IPIPDeviceIsL3",
    "KernelSideRouteFiltering",
    "NFLogSize",
    "KernelHasUDPGSOFix",
    "NFTablesSupported",
)
_KNOWN = (SNAT_RANDOM, MASQUERADE_RANDOM, CHECKSUM_BROKEN, *_OTHERS)


def parse_features(text: str) -> Features:
    """Raises ValueError that names each wrong entry."""
    found, wrong = _read(text)
    if wrong:
        raise ValueError(f"expected NAME=true or NAME=false, of {', '.join(_KNOWN)}, not {', '.join(map(repr, wrong))}")
    return found


def select_features(text: str) -> Features:
    """The entries that can be read."""
    return _read(text)[0]


def _read(text: str) -> tuple[Features, list[str]]:
    found: dict[str, bool] = {}
    wrong = []
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, value = entry.partition("=")
        try:
            if name.strip() not in _KNOWN:
                raise ValueError(name)
            found[name.strip()] = parse_flag(value.strip())
        except ValueError:
            wrong.append(entry)
    return tuple(found.items()), wrong


FEATURES = Kind(parse_features, "NAME=true or NAME=false, comma-separated")
