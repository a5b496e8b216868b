"""The agent's data plane and policies (``calico-node -felix``) on a node whose datastore is an API server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_ready
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.node import KubeNode
from tests.unrecorded import UNRECORDED


def vxlan_agent(node: KubeNode) -> dict[str, str]:
    """The environment of an agent of node1 with VXLAN and no pools, whose files are below the node's root."""
    return {
        "DATASTORE_TYPE": "kubernetes",
        "KUBECONFIG": node.kube.kubeconfig(),
        "NODENAME": "node1",
        "IP": "10.0.0.5/24",
        "CALICO_NETWORKING_BACKEND": "vxlan",
        "CALICO_IPV4POOL_CIDR": "none",
        "CALICO_IPV6POOL_CIDR": "none",
        "CALICO_RUN_DIR": f"{node.root}/run",
        "FELIX_ENDPOINTSTATUSPATHPREFIX": f"{node.root}/run",
        "CALICO_STATE_DIR": f"{node.root}/state",
        "CALICO_LOG_DIR": f"{node.root}/log",
        "CALICO_NODENAME_FILE": f"{node.root}/state/nodename",
        "CALICO_DISABLE_FILE_LOGGING": "true",
        **UNRECORDED,
    }


@contextmanager
def agent(node: KubeNode) -> Iterator[int]:
    """Its process."""
    environ = {"PATH": os.environ["PATH"], **vxlan_agent(node), "FELIX_PROMETHEUSMETRICSENABLED": "true"}
    program = ["nsenter", f"--net={node.host.path}", sys.executable, "-m", "cni_calico.nodeagent.main"]
    with open(node.root / "agent.log", "ab") as log:
        subprocess.run([*program, "-startup"], cwd=ROOT, env=environ, stderr=log, check=True)
        process = subprocess.Popen([*program, "-felix"], cwd=ROOT, env=environ, stderr=log)
    try:
        until(lambda: not why_not_ready(read_status(f"{node.root}/run"), since_boot()), "the agent is ready", 90)
        yield process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(60)
