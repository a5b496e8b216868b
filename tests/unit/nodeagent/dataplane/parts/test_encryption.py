"""Where encryption is off, nothing of it is loaded."""

import subprocess
import sys

SCRIPT = """
import sys
from cni_calico.nodeagent.dataplane import apply
from cni_calico.nodeagent.dataplane.desired import desired_state
from cni_calico.nodeagent.dataplane.parts.encryption import Encryption
from cni_calico.nodeagent.dataplane.passes import Pass
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded
from cni_calico.log import SILENT
from tests.unit.nodeagent.fabric import INTERFACES, pool, snapshot

felix = FelixSettings(wireguard_enabled=ENABLED)
wanted = desired_state(snapshot(pool("10.65.0.0/16", "Always")), INTERFACES, felix, "vxlan")
assert bool(wanted.encryption) == ENABLED

try:  # without time, so that nothing of this machine is changed
    Encryption(SILENT, lambda: 0.0).apply(wanted, felix, Deadline.after(0), Pass(), True)
except DeadlineExceeded:
    assert ENABLED
print(*(name for name in sys.modules if name.startswith("cni_calico")))
"""
# encryption.desired is named by annotations of these sources; executables are without it (build/expand.py)
ITS = ("dataplane.encryption.steps", "parts.wireguard", "kernel.wireguard", "uapi")


def loaded(*, enabled: bool) -> list[str]:
    script = SCRIPT.replace("ENABLED", str(enabled))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split() if any(part in name for part in ITS)]


def test_what_is_off_is_not_loaded():
    assert not loaded(enabled=False)
    assert {"parts.wireguard", "kernel.wireguard"} <= {".".join(name.split(".")[-2:]) for name in loaded(enabled=True)}
