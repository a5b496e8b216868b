"""PURE: the directories of a node, the variables that move them, and the files in them that several programs must find.

Rule: these paths are written nowhere else. No imports: the shim of the CNI calls reads them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_DIR = "/var/run/calico"  # sockets, locks, status files; empty after a reboot
STATE_DIR = "/var/lib/calico"
LOG_DIR = "/var/log/calico"
BIRD_CONFIG_DIR = "/etc/calico/confd/config"
CNI_BIN_DIR, CNI_NET_DIR = "/opt/cni/bin", "/etc/cni/net.d"  # by CNI's convention
# the CNI project's plugins: of distributions, of our packages, of install.sh's tarball
REFERENCE_PLUGIN_DIRS = (
    CNI_BIN_DIR,
    "/usr/lib/cni",
    "/usr/libexec/cni",
    "/usr/libexec/cni-calico",
    "/opt/cni-calico/plugins",
)
SERVICE_ACCOUNT_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"  # of the pod that we run in

NODENAME_FILE = f"{STATE_DIR}/nodename"
SHUTDOWN_FILE = "shutdownTS"  # in STATE_DIR
CNI_SOCKET, BIRD_SOCKET, BIRD_PID = "cni.sock", "bird.ctl", "bird.pid"  # in RUN_DIR
POLICED_ADDRESSES = "policed-addresses"  # in RUN_DIR
BOOT_TABLE = "boot-table"  # in RUN_DIR: there while workloads are closed since the host's start
POLICY_DECISION = "policy-decision"  # in RUN_DIR: what the policy engine has decided, as long as it lives
ENCRYPTION_REQUIRED = "encryption-required"  # in STATE_DIR: there while nothing may go between nodes in plain text
ENCRYPTION_GUARD = "encryption-guard"  # in RUN_DIR: there once the kernel sees to that
FORWARD_BELL = "look-at-forward.sock"  # in RUN_DIR: where calico-docker says that Docker may have changed FORWARD
FLOW_SOCKET = "flow-query.sock"  # in RUN_DIR: the flow recorder answers there
OWED_RELEASES = "cni/pending-del"  # in STATE_DIR


def run_dir(environ: Mapping[str, str]) -> str:
    return environ.get("CALICO_RUN_DIR", "").strip() or RUN_DIR


def state_dir(environ: Mapping[str, str]) -> str:
    return environ.get("CALICO_STATE_DIR", "").strip() or STATE_DIR


def nodename_file(environ: Mapping[str, str]) -> str:
    return environ.get("CALICO_NODENAME_FILE", "").strip() or NODENAME_FILE
