"""What nobody has configured: what is denied is recorded, from when rules decide about something, and in no one's way.

Rule: the whole agent runs, and starts its recorder itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.netns.policing.agents import ROOT, agent, status
from tests.netns.policing.lab import ALLOW_80, NODE, Lab, lab

pytestmark = [pytest.mark.netns]

ANNOTATION = "config.projectcalico.org/Flows"


def recorders(made: Lab) -> list[int]:
    """The processes of recorders in the lab's namespace."""
    here, found = os.stat(made.host.path).st_ino, []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            is_here = os.stat(directory / "ns/net").st_ino == here
            if is_here and b"-flow-recorder" in (directory / "cmdline").read_bytes().split(b"\0"):
                found.append(int(directory.name))
        except OSError:
            continue
    return found


def calicoctl(made: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "CALICO_RUN_DIR": str(made.root / "run"), "NODENAME": NODE}
    environ |= {"DATASTORE_TYPE": "local", "DATASTORE_PATH": str(made.root / "store.db")}
    command = [sys.executable, "-m", "cni_calico.ctl.main", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)


def switch(made: Lab, flows: str) -> None:
    """By the annotation of the FelixConfiguration, as an administrator does it."""
    key = ResourceKey("FelixConfiguration", "default", "")
    document: dict[str, Any] = {"kind": key.kind, "apiVersion": "projectcalico.org/v3", "spec": {}}
    made.put_document(key, {**document, "metadata": {"name": "default", "annotations": {ANNOTATION: flows}}})


@contextmanager
def host_with_containers(root: Path, mode: str) -> Iterator[Lab]:
    """The embedded store, no Kubernetes, no policy."""
    with lab(root) as made:
        made.always = {"FELIX_NFTABLESMODE": mode, "CALICO_JANITOR": "false"}
        made.put("Node", NODE, {"bgp": {"ipv4Address": "192.0.2.1/24"}})
        made.put_profile("kns.default")
        for number, name in enumerate("ab", start=1):
            made.add(name, f"10.77.0.{number}", app=name)
        yield made


def denied(made: Lab, port: int) -> str:
    """What calicoctl says of connections to it."""
    return calicoctl(made, "flows", "--host", "--since", "1h", "--port", str(port), "--verdict", "denied").stdout


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
def test_what_is_denied_is_recorded_from_the_first_policy_on(tmp_path: Path, mode: str) -> None:
    """With legacy iptables as well, and where nothing can be written: enforcement does not notice."""
    with host_with_containers(tmp_path, mode) as made:
        store = made.root / "state" / "flows"
        if mode == "Disabled":
            store.parent.mkdir(exist_ok=True)
            store.write_text("no directory")
        with agent(made, ROOT, "no policy is enforced"):
            assert made.passes("a", "b", 81)
            assert not recorders(made) and not (made.root / "run" / FLOW_SOCKET).exists()
            assert store.is_file() if mode == "Disabled" else not store.exists()
            silent = calicoctl(made, "flows", "--host")
            assert silent.returncode == 1 and "once policies are in force" in silent.stderr

            made.put("GlobalNetworkPolicy", "to-b", ALLOW_80)
            until(lambda: status(made)["policing"]["in_force"], "the policy is in force")
            [pid] = until(lambda: recorders(made), "the recorder runs")
            until(lambda: (made.root / "run" / FLOW_SOCKET).exists(), "it listens")
            rules = made.ruleset()
            assert str(DENIED_GROUP) in rules and str(ALLOWED_GROUP) not in rules
            assert made.passes("a", "b", 80) and not made.passes("a", "b", 81)
            line = until(lambda: "udp/81" in (said := denied(made, 81)) and said, "it is recorded", pause_s=0.2)
            unknown, known = r"rule 0x[0-9a-f]+, unknown", r"ingress: end of tier default \(policies: to-b\)"
            assert re.search(f"DENIED +{unknown if mode == 'Disabled' else known}", line), line
            assert "0 flows" in calicoctl(made, "flows", "--host", "--since", "1h", "--port", "80").stderr
            staged = calicoctl(made, "flows", "--host", "--staged")
            assert staged.returncode == 1 and "FELIX_FLOWS is Enabled" in staged.stderr
            problems = "".join(status(made)["policing"]["warnings"])
            assert ("cannot write" in problems) == (mode == "Disabled"), problems

            os.kill(pid, 9)
            [pid] = until(lambda: [one for one in recorders(made) if one != pid], "it is started again")
            switch(made, "Disabled")
            until(lambda: not recorders(made), "it has ended")
            until(lambda: str(DENIED_GROUP) not in made.ruleset(), "no rule reports")
            until(lambda: not (made.root / "run" / FLOW_SOCKET).exists(), "nobody answers")
        assert not recorders(made)
