"""Programs of an older version of this project, run from the sources of one of its commits.

Rule: a version is a commit of this repository; where the history is not there (an archive, a shallow clone) there is no
older version, and a test that needs one is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.host import Reply
from tests.e2e.kubernetes.node import KubeNode
from tests.fakes.upstream import Container
from tests.netns.namespaces import Namespace
from tests.netns.policing.agents import unpack, write_earlier

# the first that reads and writes records of projectcalico.org/v3, and the last that does not
FIRST_NATIVE = "bd2b8f2aea25e05b984744f38f55deae1fe1dd6c"
BEFORE_NATIVE = f"{FIRST_NATIVE}~1"


def sources_of(commit: str, directory: Path) -> Path | None:
    """None: the history is not here."""
    archive = directory / "sources.tar"
    if not write_earlier(archive, commit):
        return None
    unpack(archive, directory)
    return directory


@dataclass
class OlderVersion:
    """Its programs at a node. As ``mixed.Turns`` wants another plugin: it answers with networks."""

    sources: Path
    node: KubeNode
    said: list[str] = field(default_factory=list)

    def _run(
        self, module: str, *words: str, environ: dict[str, str], stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", f"--net={self.node.host.path}", sys.executable, "-B", "-m", module, *words]
        mine = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.sources), **environ}
        return subprocess.run(
            command, input=stdin, env=mine, cwd=self.sources, capture_output=True, text=True, timeout=120
        )

    def call(self, command: str, container: Container, pod: Namespace | None) -> Reply:
        """A call of its plugin, by itself."""
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={container.namespace};K8S_POD_NAME={container.pod}"
        args += f";K8S_POD_INFRA_CONTAINER_ID={container.id}"
        environ = self.node.env(command, container.id, "" if pod is None else pod.path, "eth0", args)
        environ |= {"CALICO_RUN_DIR": str(self.node.root / "older-run")}  # a server of the newer one does not answer
        done = self._run(
            "cni_calico.plugin.main", environ=environ, stdin=json.dumps(self.node.conf(nodename=container.node))
        )
        return Reply(done.returncode, json.loads(done.stdout) if done.stdout.strip() else None)

    def add(self, container: Container, pod: Namespace) -> list[str]:
        reply = self.call("ADD", container, pod)
        assert reply.ok, reply
        return [ip["address"] for ip in reply.document["ips"]]

    def delete(self, container: Container, pod: Namespace) -> None:
        reply = self.call("DEL", container, pod)
        assert reply.ok, reply

    def calicoctl(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": self.node.kube.kubeconfig()}
        return self._run("cni_calico.ctl.main", *words, environ=environ, stdin=stdin)

    def start_up(self, **settings: str) -> subprocess.CompletedProcess[str]:
        """What its agent does before everything else."""
        return self._run("cni_calico.nodeagent.main", "-startup", environ=agent_settings(self.node, **settings))


def agent_settings(node: KubeNode, **settings: str) -> dict[str, str]:
    root = node.root
    return {
        "DATASTORE_TYPE": "kubernetes",
        "KUBECONFIG": node.kube.kubeconfig(),
        "NODENAME": node.nodename,
        "IP": "10.0.0.5/24",
        "CALICO_NETWORKING_BACKEND": "vxlan",
        "CALICO_IPV4POOL_CIDR": "10.66.0.0/16",
        "CALICO_RUN_DIR": f"{root}/agent-run",
        "CALICO_STATE_DIR": f"{root}/agent-state",
        "CALICO_LOG_DIR": f"{root}/agent-log",
        "CALICO_NODENAME_FILE": f"{root}/agent-state/nodename",
        "CALICO_DISABLE_FILE_LOGGING": "true",
        **settings,
    }


def without_bookkeeping(found: Any) -> Any:
    """An object without what the API server counts and notes; an empty status, which the older one writes, is none."""
    kept = {name: part for name, part in found["metadata"].items() if name not in _COUNTED}
    return {name: part for name, part in {**found, "metadata": kept}.items() if (name, part) != ("status", {})}


_COUNTED = ("resourceVersion", "generation", "managedFields")
