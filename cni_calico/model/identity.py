"""PURE: who a container outside Kubernetes is, as labels of its WorkloadEndpoint; the same for every runtime.

Rule: a container's own labels get keys below ``org.projectcalico.label.`` and no others, so none can pass for one of
ours; except compose's project and service, which are read from them, and so are claims of whoever made the container or
its image (runtimes copy an image's labels to its containers). What a label cannot hold is made legal: every other
character than letters, digits, "-", "_" and "." is "_", it is cut, and "-" with 8 hex digits of the SHA-1 of the
original follows, so that two texts stay two. Control characters and what is too much are left out, each with the
reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cni_calico.model.names import sha1_hex
from cni_calico.model.resources import WorkloadEndpoint

OURS, OWN = "cni-calico.io/", "org.projectcalico.label."
CONTAINER, IMAGE, NETWORK, POD = f"{OURS}container", f"{OURS}image", f"{OURS}network", f"{OURS}pod"
PROJECT, SERVICE = f"{OURS}compose-project", f"{OURS}compose-service"  # claims
MADE_HERE = frozenset((CONTAINER, IMAGE, NETWORK, POD, PROJECT, SERVICE))
LIBNETWORK = "libnetwork"  # of Docker's containers: namespace, orchestrator and workload, as upstream's plugin has them
INFRA_END = "-infra"  # of the names of the containers that hold a podman pod's network
TEXT_MAX = 1024  # characters of a container's key or value; a longer one is left out
LABELS_MAX, LABELS_BYTES = 64, 4096  # of a container's own labels, as they are stored

_PROJECTS = ("com.docker.compose.project", "io.podman.compose.project")
_SERVICES = ("com.docker.compose.service", "io.podman.compose.service")
_NAME_MAX, _PREFIX_MAX, _HASH = 63, 253, 8
_ENDS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_INNER = _ENDS | frozenset("-_.")
_DNS_ENDS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_DNS_INNER = _DNS_ENDS | frozenset("-.")


@dataclass(frozen=True, slots=True)
class ContainerIdentity:
    """What a runtime says of a container; "" is unknown. ``labels`` are the container's own."""

    name: str = ""
    image: str = ""
    pod: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IdentityLabels:
    """``left_out``: what is not among ``labels``, and why, a sentence each."""

    labels: Mapping[str, str]
    left_out: tuple[str, ...] = ()


def plan_labels(identity: ContainerIdentity, network: str) -> IdentityLabels:
    """The labels of a container's endpoint in a network ("": unknown)."""
    found: dict[str, str] = {}
    left_out: list[str] = []
    own = identity.labels
    project = next((own[key] for key in _PROJECTS if own.get(key)), "")
    service = next((own[key] for key in _SERVICES if own.get(key)), "")
    said = {
        CONTAINER: identity.name,
        IMAGE: identity.image,
        NETWORK: network,
        POD: identity.pod,
        PROJECT: project,
        SERVICE: service,
    }
    for key, text in said.items():
        if why := _unusable(text):
            left_out.append(f"the label {key} is missing: the {key.partition('/')[2]}'s name {why}")
        elif text:
            found[key] = legal_value(text)
    size = 0
    for count, (key, value, why) in enumerate(_own(identity.labels)):
        size += len(key) + len(value)
        if not why and (count >= LABELS_MAX or size > LABELS_BYTES):
            why = f"the container has more than {LABELS_MAX} labels or {LABELS_BYTES} bytes of them"
        if why:
            left_out.append(f"the container's label {_shown(key)} is left out: {why}")
        else:
            found[key] = value
    return IdentityLabels(found, tuple(left_out))


def _own(labels: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each label as (key, value, why it cannot be one), in the order of their keys."""
    for key in sorted(labels):
        why = _unusable(key) or ("" if key.removeprefix(OWN) else "it has no name") or _unusable(labels[key])
        yield (key, "", why) if why else (legal_key(key), legal_value(labels[key]), "")


def _unusable(text: str) -> str:
    if not text.isprintable():
        return "has a control character"
    return f"has more than {TEXT_MAX} characters" if len(text) > TEXT_MAX else ""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def legal_key(key: str) -> str:
    """The key of a container's own label; one that has the prefix already keeps it."""
    bare = key.removeprefix(OWN)
    prefix, slash, name = f"{OWN}{bare}".rpartition("/")
    is_dns = not slash or (
        len(prefix) <= _PREFIX_MAX and all(_is(part, _DNS_ENDS, _DNS_INNER) for part in prefix.split("."))
    )
    if is_dns and "/" not in prefix and _is(name, _ENDS, _INNER) and len(name) <= _NAME_MAX:
        return f"{OWN}{bare}"
    return OWN + _hashed(bare, _NAME_MAX - len(OWN))


def legal_value(text: str) -> str:
    if not text or (_is(text, _ENDS, _INNER) and len(text) <= _NAME_MAX):
        return text
    return _hashed(text, _NAME_MAX)


def _is(text: str, ends: frozenset[str], inner: frozenset[str]) -> bool:
    return bool(text) and text[0] in ends and text[-1] in ends and inner.issuperset(text)


def _hashed(text: str, room: int) -> str:
    plain = "".join(c if c in _INNER else "_" for c in text)[: room - _HASH - 1].lstrip("-_.")
    return f"{plain}-{sha1_hex(text)[:_HASH]}" if plain else sha1_hex(text)[:_HASH]


def is_identity(key: str) -> bool:
    """Whether a label's key is one that is made here."""
    return key.startswith((OURS, OWN))


def merge_labels(labels: Mapping[str, str], identity: Mapping[str, str]) -> Mapping[str, str]:
    """An endpoint's labels with this identity: labels of other origin stay."""
    return {key: value for key, value in labels.items() if not is_identity(key)} | dict(identity)


def container_name(record: WorkloadEndpoint) -> str:
    """What people call a container outside Kubernetes; "" for pods, whose owners choose their labels."""
    return "" if record.pod or record.orchestrator == "k8s" else shown_name(record.metadata.labels)


def shown_name(labels: Mapping[str, str]) -> str:
    """What people call the workload: the container's name, for the network of a pod the pod's; "" if unknown."""
    container, pod = labels.get(CONTAINER, ""), labels.get(POD, "")
    return pod if pod and (not container or container.endswith(INFRA_END)) else container
