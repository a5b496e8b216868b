"""PURE: who keeps an address while its pods come and go, and the handle under which that is stored.

Rule: the handle follows from the identity alone, so that every pod of it, on whatever node, finds the same addresses.
Handles of virtual machines are upstream's; the others are named alike.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cni_calico.model.digests import sha256
from cni_calico.model.resources import Attribute

DEFAULT_NETWORK = "k8s-pod-network"
HANDLE_MAX = 128  # characters, where names are not Kubernetes' own
VMI_NAME, VMI_UID, VM_UID, MIGRATION_UID = "vmi-name", "vmi-uid", "vm-uid", "vmim-uid"
IDENTITY, CONTAINER, STICKY = "identity", "container", "sticky"
_SHORTENED = "_"
_URL_SAFE = str.maketrans("+/", "-_")
_NOTHING: Mapping[str, str] = {}
_OF_NOBODY = frozenset(("timestamp",))
_CONTAINER = re.compile(r"[0-9a-f]{64}")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class LastingKind(StrEnum):
    """The middle part of the handle."""

    MACHINE = "vmi"
    STATEFUL = "sts"
    NAMED = "id"


_KINDS = frozenset(LastingKind)
_OURS = (LastingKind.STATEFUL, LastingKind.NAMED)


@dataclass(frozen=True, slots=True)
class Identity:
    """``name``: of a VirtualMachineInstance; "<StatefulSet>.<ordinal>"; or whatever its user calls it. ``attributes``:
    what an allocation says of it beside node and pod.
    """

    kind: LastingKind
    network: str
    namespace: str
    name: str
    attributes: Mapping[str, str] = field(default_factory=dict, compare=False)

    def handle_id(self, *, is_kubernetes: bool) -> str:
        """The IPAM handle. ``is_kubernetes``: the datastore's names are Kubernetes' own, which have room enough for
        all of it, and in which no shortened one would be valid.
        """
        prefix, own = f"{self.network or DEFAULT_NETWORK}.{self.kind}.", f"{self.namespace}.{self.name}"
        return prefix + own if is_kubernetes else limit_length(prefix, own, HANDLE_MAX)

    def __str__(self) -> str:
        what = {
            LastingKind.MACHINE: "virtual machine",
            LastingKind.STATEFUL: "pod of the StatefulSet",
            LastingKind.NAMED: "identity",
        }[self.kind]
        return f"{what} {self.namespace}/{self.name}"


def limit_length(prefix: str, own: str, longest: int) -> str:
    """``prefix`` and ``own``, or, if that is too long, the beginning of a digest of ``own`` in its place, as upstream
    shortens its IDs.
    """
    length = len(prefix) + len(own)
    if length < longest or (length == longest and not own.startswith(_SHORTENED)):
        return prefix + own
    digest = b2a_base64(sha256(own.encode()).digest(), newline=False).decode().rstrip("=").translate(_URL_SAFE)
    return prefix + _SHORTENED + digest[: max(1, longest - len(prefix) - 1)]


@dataclass(frozen=True, slots=True)
class KeptHandle:
    """Whom an allocation is kept for, as far as it says that; ``name`` "" if it does not."""

    kind: LastingKind
    namespace: str
    name: str


def parse_kept(handle_id: str, said: Mapping[str, str]) -> KeptHandle | None:
    """Whom the allocation under this handle, with these attributes of any of its owners, is kept for; None if its
    handle is an ordinary one.

    Names of networks, machines and identities may have dots, and a network may be called like a part of such a handle;
    so attributes decide. Only a machine that no pod runs has none (upstream's form). Then the handle is read by itself;
    if that is possible in several ways nobody knows whose it is.
    """
    if not any(f".{kind}." in handle_id for kind in LastingKind):
        return None
    called = {LastingKind.MACHINE: said.get(VMI_NAME), **dict.fromkeys(_OURS, said.get(IDENTITY))}
    if said.keys() <= _OF_NOBODY:
        return _read_handle(handle_id)
    return next((kept for kind, name in called.items() if name and (kept := _named(handle_id, kind, name, said))), None)


def _named(handle_id: str, kind: LastingKind, name: str, said: Mapping[str, str]) -> KeptHandle | None:
    """If the handle is the one that an identity of this kind and name has."""
    before, mark, namespace = handle_id.removesuffix(f".{name}").rpartition(f".{kind}.")
    if handle_id.endswith(f".{name}") and before and mark and _NAMESPACE.fullmatch(namespace):
        return KeptHandle(kind, namespace, name)
    before, mark, own = handle_id.rpartition(f".{kind}.{_SHORTENED}")
    return KeptHandle(kind, said.get("namespace", ""), name) if before and own and "." not in own else None


def _read_handle(handle_id: str) -> KeptHandle | None:
    parts = handle_id.split(".")
    if _CONTAINER.fullmatch(parts[-1]):
        return None  # longer than any name of an identity
    found = []
    for index, part in enumerate(parts[1:-1], 1):
        if part not in _KINDS:
            continue
        kind, namespace, name = LastingKind(part), parts[index + 1], ".".join(parts[index + 2 :])
        if namespace.startswith(_SHORTENED) and not name:
            found.append(KeptHandle(kind, "", ""))
        elif name and _NAMESPACE.fullmatch(namespace) and (kind is not LastingKind.STATEFUL or parts[-1].isdecimal()):
            found.append(KeptHandle(kind, namespace, name))
    return found[0] if len(found) == 1 else KeptHandle(found[0].kind, "", "") if found else None


# -- the owners of one allocation -------------------------------------------------------------------------------------

ALTERNATE = "alternateOwnerAttrs"


@dataclass(frozen=True, slots=True)
class AddressOwners:
    """Who has an address: the pod to which it is routed, and during a live migration the pod to which the machine
    comes. Either may be empty: then there is none.
    """

    active: Mapping[str, str] = field(default_factory=dict)
    alternate: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(names_somebody(self.active) or names_somebody(self.alternate))

    @property
    def said(self) -> Mapping[str, str]:
        """What either says; the active one first."""
        return {**self.alternate, **self.active}

    def without(self, is_leaving: Callable[[Mapping[str, str]], bool]) -> AddressOwners:
        """What is left of an owner that leaves says only for whom the address is kept: of a machine its handle does."""
        return AddressOwners(
            _identity_in(self.active) if is_leaving(self.active) else self.active,
            _NOTHING if is_leaving(self.alternate) else self.alternate,
        )


def names_somebody(owner: Mapping[str, str]) -> bool:
    return bool(owner.get("pod") or owner.get(CONTAINER))


def _identity_in(owner: Mapping[str, str]) -> Mapping[str, str]:
    if IDENTITY not in owner:
        return _NOTHING
    return {name: owner[name] for name in (IDENTITY, STICKY, "namespace") if name in owner}


def is_pod(owner: Mapping[str, str], namespace: str, pod: str) -> bool:
    return bool(pod) and owner.get("pod") == pod and owner.get("namespace") == namespace


def owners_of(attribute: Attribute) -> AddressOwners:
    alternate = attribute.extra.get(ALTERNATE)
    return AddressOwners(attribute.secondary, alternate if isinstance(alternate, Mapping) else _NOTHING)


def with_owners(attribute: Attribute, owners: AddressOwners) -> Attribute:
    """An owner that is not there is absent from the document, too."""
    extra = {name: value for name, value in attribute.extra.items() if name != ALTERNATE}
    if owners.alternate:
        extra[ALTERNATE] = dict(owners.alternate)
    return Attribute(attribute.handle_id, dict(owners.active), extra)
