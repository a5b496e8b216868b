"""The status file, as upstream's controllers write it and ``check-status`` reads it.

Rule: written in one step, every round; a file older than a few rounds counts as not ready, because its writer hangs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.keys import CLUSTER

ROUND_S = 10.0
FIRST_CALL_S, LONGEST_CALL_S = 4.0, 16.0
STALE_S = 60.0


@dataclass(slots=True)
class Health:
    """``server`` asks the Kubernetes API server whether it is healthy."""

    path: Path
    store: Datastore
    server: Callable[[Deadline], object]
    _call_s: dict[str, float] = field(default_factory=dict)
    _written: dict[str, Any] = field(default_factory=dict)

    def look(self) -> bool:
        """Write the present state; returns whether every check succeeded. Raises OSError if it cannot be written."""
        found = {
            "CalicoDatastore": self._ask("CalicoDatastore", self._read_cluster),
            "KubeAPIServer": self._ask("KubeAPIServer", self.server),
        }
        write_status(self.path, {"Startup": {"Ready": True, "Reason": ""}, **found})
        return all(one["Ready"] for one in found.values())

    def _read_cluster(self, deadline: Deadline) -> None:
        self.store.get(CLUSTER, deadline)

    def _ask(self, name: str, question: Callable[[Deadline], object]) -> dict[str, Any]:
        """Ask one question; a slow server is given more time, but counts as not healthy meanwhile."""
        call_s = self._call_s.get(name, FIRST_CALL_S)
        try:
            question(Deadline.after(call_s))
        except CalicoError as e:
            self._call_s[name] = min(LONGEST_CALL_S, 2 * call_s)
            return {"Ready": False, "Reason": str(e)}
        self._call_s[name] = FIRST_CALL_S
        return {"Ready": True, "Reason": ""}


def write_status(path: Path, readiness: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(json.dumps({"Readiness": readiness}))
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)


def why_not_ready(path: Path, *, now: Callable[[], float] = time.time) -> str:
    """The reasons joined by "; ", "" if ready."""
    try:
        age_s = now() - path.stat().st_mtime
        found = json.loads(path.read_text())["Readiness"]
        reasons = [str(one.get("Reason") or name) for name, one in sorted(found.items()) if not one["Ready"]]
    except FileNotFoundError:
        return f"there is no status file {path}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        return f"cannot read the status file {path}: {e}"
    if not found:
        return "nothing has been checked yet"
    if age_s > STALE_S:
        reasons.append(f"the status file {path} was last written {age_s:.0f} s ago")
    return "; ".join(reasons)
