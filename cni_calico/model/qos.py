"""PURE: quality-of-service annotations of a pod as the fields of an endpoint's ``qosControls``.

Rule: a value is a Kubernetes quantity; one beyond the bounds of its field counts as the bound, as in upstream. What is
no quantity, or is zero or less (upstream makes that the smallest limit there is, a pod at 1 kbit/s), is left out: a
typing error in a limit must not leave a pod without network. Either is reported.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.model.quantities import parse_quantity

PREFIX = "qos.projectcalico.org/"
# the bandwidth plugin's annotations; upstream's own annotation with the same meaning wins
_OF_KUBERNETES = {
    "ingressBandwidth": "kubernetes.io/ingress-bandwidth",
    "egressBandwidth": "kubernetes.io/egress-bandwidth",
}
_WAYS = ("ingress", "egress")
_SHOWN_MAX = 120
# field -> bounds; each exists for ingress and egress. Bits per second, bits, bits per second, bytes; packets per second
# (upstream's most is 10,000, iptables' finest), packets, connections
_FIELDS = {
    "Bandwidth": (1000, 10**15),
    "Burst": (1000, 34359738360),
    "Peakrate": (1010, 1010 * 10**12),
    "Minburst": (1000, 100 * 10**6),
    "PacketRate": (1, 10**9),
    "PacketBurst": (1, 10**9),
    "MaxConnections": (1, 4294967295),
}
# field -> the one without which it says nothing
_NEEDS = {"Burst": "Bandwidth", "Peakrate": "Bandwidth", "Minburst": "Peakrate", "PacketBurst": "PacketRate"}
_QUANTITIES = {f"{way}{name}": bounds for way in _WAYS for name, bounds in _FIELDS.items()}
DSCP = "dscp"
DSCP_MAX = 63
BOUNDS = _QUANTITIES | {DSCP: (0, DSCP_MAX)}
# RFC 2474, 2597 and 3246
_DSCP_NAMES = (
    {"DF": 0, "EF": 46}
    | {f"CS{i}": 8 * i for i in range(7)}
    | {f"AF{i}{j}": 8 * i + 2 * j for i in range(1, 5) for j in range(1, 4)}
)


def parse_qos(annotations: Mapping[str, str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """(fields of qosControls, what was not taken as it is written, a sentence each)."""
    own = {name[len(PREFIX) :]: text for name, text in annotations.items() if name.startswith(PREFIX)}
    kubernetes = {field: name for field, name in _OF_KUBERNETES.items() if name in annotations}
    if not own and not kubernetes:
        return {}, ()
    found: dict[str, int] = {}
    said = [
        f"annotation {_shown(PREFIX + field)} is not one that pods have; it is left out"
        for field in sorted(own.keys() - BOUNDS.keys())
    ]
    for field, (low, high) in _QUANTITIES.items():
        names = (f"{PREFIX}{field}" if field in own else "", kubernetes.get(field, ""))
        for name in filter(None, names):
            value, why = _read(annotations[name], low, high)
            said += [f"annotation {name}: {why}"] if why else []
            if value is not None:
                found[field] = value
                break
    if DSCP in own:
        value = read_dscp(own[DSCP])
        if value is None:
            said.append(f"annotation {PREFIX}{DSCP}: {_no_dscp(own[DSCP])}; it is left out")
        else:
            found[DSCP] = value
    return found, (*said, *_drop_useless(found))


def _drop_useless(found: dict[str, int]) -> list[str]:
    """Take out of ``found`` what has no effect beside the others, and say so."""
    said = []
    for way in _WAYS:
        for name, needed in _NEEDS.items():
            field, other = f"{way}{name}", f"{way}{needed}"
            if field not in found:
                continue
            if other not in found:
                said.append(f"annotation {PREFIX}{field} says nothing without {other}; it is left out")
            elif name == "Peakrate" and found[field] <= found[other]:
                said.append(f"annotation {PREFIX}{field} is not above {other}; it is left out")
            else:
                continue
            del found[field]
    return said


def _read(text: object, low: int, high: int) -> tuple[int | None, str]:
    """(the value within the bounds or None, what there is to say)."""
    try:
        value = parse_quantity(text) if isinstance(text, str) else 0
    except ValueError:
        value = 0
    if value <= 0:
        return None, f"expected a quantity from {low} to {high}, got {_shown(text)!r}; it is left out"
    if low <= value <= high:
        return value, ""
    bound = low if value < low else high
    return bound, f"{_shown(text)} is {'less' if value < low else 'more'} than {bound}; it counts as {bound}"


def parse_dscp(text: str) -> int:
    """A number or a name. Raises ValueError."""
    value = read_dscp(text)
    if value is None:
        raise ValueError(_no_dscp(text))
    return value


def _no_dscp(text: object) -> str:
    return f"expected a number from 0 to {DSCP_MAX} or a name such as EF, CS1 or AF41, got {_shown(text)!r}"


def read_dscp(text: object) -> int | None:
    """A number, or a text with a number or a name; None: it is neither."""
    if type(text) is int and 0 <= text <= DSCP_MAX:
        return text
    if not isinstance(text, str):
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= DSCP_MAX:
        return int(text)
    return _DSCP_NAMES.get(text.upper())


def _shown(text: object) -> str:
    """Shortened, and in one line: no API server takes a name that is not printable, but etcd does."""
    shown = str(text)[:_SHOWN_MAX]
    return shown if shown.isprintable() else repr(shown)
