"""PURE: quality-of-service annotations of a pod as the fields of an endpoint's ``qosControls``.

Rule: a value is a Kubernetes quantity within the bounds of its field; any other value is left out and reported, as in
upstream: a typing error in a limit must not leave a pod without network.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "qos.projectcalico.org/"
# the bandwidth plugin's annotations; upstream's own annotation with the same meaning wins
_OF_KUBERNETES = {
    "kubernetes.io/ingress-bandwidth": "ingressBandwidth",
    "kubernetes.io/egress-bandwidth": "egressBandwidth",
}
_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_RATE = (1000, 10**15)
_BURST = (1000, 34359738360)
_PACKETS = (1, 10**9)
_CONNECTIONS = (1, 4294967295)
_SHOWN_MAX = 120
_SIZE = (1, 100 * 10**6)
# field -> bounds; each exists for ingress and egress
_FIELDS = {
    "Bandwidth": _RATE,
    "Burst": _BURST,
    "Peakrate": _RATE,
    "Minburst": _SIZE,
    "PacketRate": _PACKETS,
    "PacketBurst": _PACKETS,
    "MaxConnections": _CONNECTIONS,
}
BOUNDS = {f"{way}{name}": bounds for way in ("ingress", "egress") for name, bounds in _FIELDS.items()} | {
    "dscp": (0, 63)
}


def parse_quantity(text: str) -> int:
    """A Kubernetes quantity that is a whole number ("10M", "1Gi", "500"). Raises ValueError."""
    digits = text.rstrip("kKMGTPi")
    suffix = text[len(digits) :]
    if suffix not in _SUFFIXES or not (digits.isascii() and digits.isdecimal()) or len(digits) > 18:
        raise ValueError(f"{text!r} is not a quantity")
    return int(digits) * _SUFFIXES[suffix]


def parse_qos(annotations: Mapping[str, str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """(fields of qosControls, annotations left out with the reasons)."""
    found: dict[str, int] = {}
    ignored = []
    for name, text in sorted(annotations.items()):
        field = name[len(PREFIX) :] if name.startswith(PREFIX) else _OF_KUBERNETES.get(name, "")
        if not field or (name in _OF_KUBERNETES and f"{PREFIX}{field}" in annotations):
            continue
        low, high = BOUNDS.get(field, (1, 0))
        try:
            value = parse_quantity(text)
        except (ValueError, AttributeError):
            value = -1
        if low <= value <= high:
            found[field] = value
        else:
            wanted = f"a quantity from {low} to {high}" if field in BOUNDS else "another annotation"
            shown_name, shown_text = name[:_SHOWN_MAX], str(text)[:_SHOWN_MAX]
            if not shown_name.isprintable():  # no API server takes it, but etcd does
                shown_name = repr(shown_name)
            ignored.append(f"annotation {shown_name}: expected {wanted}, got {shown_text!r}")
    return found, tuple(ignored)
