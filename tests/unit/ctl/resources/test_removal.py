"""What is said of resources that were deleted and are still there."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cni_calico.ctl.resources.removal import why_still_there
from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Versioned
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreForbidden
from cni_calico.model.keys import ResourceKey

POOL = ResourceKey("IPPool", "p")


class Held:
    """A session with a cluster that has one pool, whose deletion waits; without ``status`` it may not be read."""

    kind = "kubernetes"

    def __init__(self, status: Any = None) -> None:
        self.store, self.deadline, self._status = self, Deadline.after(60), status

    def get(self, key: ResourceKey, deadline: Deadline) -> Versioned:
        if self._status is None:
            raise DatastoreForbidden("cannot read IPPool p")
        metadata = {"name": "p", "deletionTimestamp": "2026-11-20T12:00:00Z", "finalizers": ["f"]}
        return Versioned(key, {"metadata": metadata, "status": self._status}, 1)


@pytest.mark.parametrize("status", ["x", ["x"], {"conditions": "x"}, {"conditions": ["x", {"status": "False"}]}])
def test_a_status_of_any_shape_spoils_no_deletion(status: Any) -> None:
    said = why_still_there(cast(Session, Held(status)), POOL)
    assert said == "IPPool p is being deleted and still there. It waits for f to be taken away."


def test_conditions_say_what_it_waits_for() -> None:
    status = {"conditions": [{"status": "False", "message": "In use."}, {"status": "True", "message": "Fine."}]}
    assert why_still_there(cast(Session, Held(status)), POOL).endswith(" In use.")


def test_a_resource_that_may_be_deleted_and_not_read_was_deleted() -> None:
    assert why_still_there(cast(Session, Held()), POOL) == ""
