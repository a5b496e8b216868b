"""What the group allocator's callers exchange with the thread that carries out their batch.

Rule: an item belongs to its caller; the batch only notes in it what may have been stored, so that a caller whose batch
ended half-way can repair exactly that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.ipam.assign import AssignRequest, Companion
from cni_calico.ipam.batch import Assigned, Step
from cni_calico.ipam.share import Share
from cni_calico.ipam.view import Stored
from cni_calico.model.resources import Address

HANDLE_BLOCKS_MAX = 8
ATTEMPTS = 4


@dataclass(slots=True)
class Item:
    """One request in a batch: to take addresses if ``request`` is set, otherwise to release those of ``handle_id`` or
    its ``share``. ``handle``: the handle that was made for this request before the batch; ``begun``: making it was
    tried. ``planned``: what a commit of this request may have stored, with attributes that only this request writes
    (they have its time). ``freed``: what it may have released, including attempts that a conflict ended half-way.
    ``given``: the addresses of the attempt under way; ``companion``: the record to be created with them.
    """

    deadline: Deadline
    handle_id: str
    request: AssignRequest | None = None
    share: Share | None = None
    handle: Stored | None = None
    begun: bool = False
    planned: dict[Assigned, Mapping[str, str]] = field(default_factory=dict)
    freed: dict[Address, None] = field(default_factory=dict)
    given: tuple[Assigned, ...] = ()
    companion: Companion | None = None


class Slow:
    """The outcome of an item that must be carried out by the plain allocator."""


SLOW = Slow()


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome of an item whose addresses are released and whose handle remains to be removed by its caller.

    On a store with one request per record the next batch then need not wait for it.
    """

    step: Step
    stored: Stored | None


GroupOutcome = tuple[Assigned, ...] | Ending | Slow | CalicoError | None  # None: released
