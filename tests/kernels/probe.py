"""In a machine: what its kernel has of what tests ask for, and what the agent says that it lacks; as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.kernels.features import FEATURES, has
from tests.netns.policing.lab import DENY_B, lab


def probe() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory, lab(Path(directory)) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        made.put("GlobalNetworkPolicy", "deny", DENY_B)
        made.start()
        said = made.until_in_force(policies=1)
        made.stop()
    return {
        "release": os.uname().release,
        "has": {name: has(name) for name in FEATURES if name != "machine"},
        "by": said["by"],
        "notes": said["notes"],
    }


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
