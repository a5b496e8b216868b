"""PURE: what a command works with, and how it fails.

Rule: commands return the text to print and raise for everything else; only main.py prints and exits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import Key, ResourceKey, etcd_path


@dataclass(frozen=True, slots=True)
class Session:
    """An open datastore, the deadline of the command, and the source of time (RFC 3339) and new UIDs.

    ``damaged`` collects the records that the datastore left out of listings because they are not JSON objects,
    ``written`` the resources that were stored.
    """

    store: Datastore
    deadline: Deadline
    now: Callable[[], str]
    uid: Callable[[], str]
    damaged: list[tuple[str, str]] = field(default_factory=list)
    written: list[ResourceKey] = field(default_factory=list)

    def note_damaged(self, key: Key, why: str) -> None:
        """``why`` may repeat the record's key or description; that part is dropped."""
        name = describe(key)
        for known in (etcd_path(key), name):
            why = why.removeprefix(f"cannot read {known}: ")
        self.damaged.append((name, f"cannot read {name}: {why}"))

    def take_damaged(self) -> list[tuple[str, str]]:
        """(record in words, why) for each record left out since the last call; the caller informs the user."""
        taken = list(self.damaged)
        self.damaged.clear()
        return taken


def shown_key(key: ResourceKey) -> str:
    """A resource as messages name it: IPPool(name), WorkloadEndpoint(namespace/name)."""
    return f"{key.kind}({key.namespace}/{key.name})" if key.namespace else f"{key.kind}({key.name})"


class ResourceMissing(CalicoError):
    blame = "user"

    def __init__(self, key: ResourceKey) -> None:
        super().__init__(f"resource does not exist: {shown_key(key)} with error: <nil>")  # upstream's words


class ResourceExists(CalicoError):
    blame = "user"

    def __init__(self, key: ResourceKey) -> None:
        super().__init__(f"resource already exists: {shown_key(key)}")


class OperationNotSupported(CalicoError):
    """What this kind, or this resource, does not allow; in upstream's words."""

    blame = "user"

    def __init__(self, operation: str, subject: str, reason: str = "") -> None:
        super().__init__(f"operation {operation} is not supported on {subject}" + (f": {reason}" if reason else ""))


class UpdateConflict(CalicoError):
    blame = "user"
    hint = "get the resource again and repeat the change on that version"

    def __init__(self, key: ResourceKey) -> None:
        super().__init__(f"update conflict: {shown_key(key)}")


class CommandFailed(CalicoError):
    """A command that failed after it may have done something; ``output`` is what to print about that, ``status`` how
    the program ends.
    """

    blame = "user"

    def __init__(self, message: str, *, output: str = "", details: str = "", status: int = 1) -> None:
        super().__init__(message, details=details)
        self.output, self.status = output, status
