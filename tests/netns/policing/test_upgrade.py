"""The version before is stopped and this one started under traffic: nothing is lost, nothing forbidden passes, and the
kernel keeps every rule that it has.

Rule: the version before is the commit ``BEFORE`` of this repository, run from its own sources; where the history is not
there (an archive, a shallow clone) there is nothing to upgrade from.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.nodeagent.status.file import read_status
from tests.deadlines import until
from tests.netns.policing.lab import ALLOW_80, DENY_B, NODE, Lab, lab, traffic

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

ROOT = Path(__file__).resolve().parents[3]
BEFORE = "313c8ac6f41ef7fe902e0004b4658dba7905d8c1"  # the last one in which the policy engine had no room of its own
LONG = "a long policy"
NFT_COUNTERS = re.compile(r"packets \d+ bytes \d+")
KINDS_OF_RULES = [
    {"action": "Log", "protocol": "TCP", "destination": {"ports": [1, 2, "3:9"], "notPorts": [4]}},
    {"action": "Allow", "protocol": "TCP", "source": {"selector": "who == 'p'", "notNets": ["198.51.100.9/32"]}},
    {"action": "Allow", "protocol": "UDP", "source": {"ports": [f"{100 + 2 * i}" for i in range(40)]}},
    {"action": "Deny", "protocol": "ICMP", "icmp": {"type": 8}},
    {"action": "Allow", "ipVersion": 6, "protocol": "ICMPv6"},
    {"action": "Deny", "notProtocol": "SCTP", "destination": {"notSelector": "app == 'a'", "nets": ["10.9.0.0/16"]}},
    {"action": "Pass"},
]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version before."""
    command = ["git", "archive", BEFORE, "cni_calico", "build/launch"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True)
    if archive.returncode != 0:
        pytest.skip(f"history: commit {BEFORE[:8]} is not here, so there is no version to upgrade from")
    directory: Path = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(directory)
    return directory


def status(made: Lab) -> dict[str, Any]:
    return read_status(str(made.root / "run"))


@contextmanager
def agent(made: Lab, sources: Path) -> Iterator[Callable[[], None]]:
    """``calico-node -felix`` from sources, its policies in force; gives what ends it in order."""
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(sources),
        "DATASTORE_TYPE": "local",
        "DATASTORE_PATH": str(made.root / "store.db"),
        "NODENAME": NODE,
        "CALICO_RUN_DIR": str(made.root / "run"),
        "CALICO_STATE_DIR": str(made.root / "state"),
        "FELIX_ENDPOINTSTATUSPATHPREFIX": str(made.root),
        **made.always,
    }
    log = made.root / f"{sources.name}.log"
    command = ["nsenter", f"--net={made.host.path}", sys.executable, "-B", "build/launch/calico-node.py", "-felix"]
    with log.open("ab") as output:
        running = subprocess.Popen(command, cwd=sources, env=environ, stdout=output, stderr=subprocess.STDOUT)

    def in_force() -> bool:
        assert running.poll() is None, log.read_text()
        said = status(made)
        return said.get("pid") == running.pid and bool(said["policing"]["in_force"])

    def end() -> None:
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, log.read_text()

    try:
        until(in_force, f"policies of {sources} are in force")
        yield end
    except AssertionError as e:
        raise AssertionError(f"{e}\n{log.read_text()}") from None
    finally:
        running.kill()
        running.wait()


def fill(made: Lab) -> None:
    """Two workloads of which one may ask the other at one port, and a policy with a rule of every other kind."""
    made.put("Node", NODE, {"bgp": {"ipv4Address": "192.0.2.1/24"}})
    for number, name in enumerate("ab", start=2):
        made.add(name, f"10.0.1.{number}", f"fd00::{number}", app=name)
    made.put_profile("kns.default", pcns__name="default")
    partners = ["198.51.100.0/24", "203.0.113.7/32", "2001:db8::/64"]
    made.put("NetworkSet", "partners", {"nets": partners}, "default", who="p")
    made.put("NetworkPolicy", "default.first", ALLOW_80, "default")
    made.put("NetworkPolicy", "default.last", DENY_B | {"order": 9000}, "default")
    kinds = {"order": 50, "selector": "app == 'b'", "types": ["Ingress", "Egress"], "ingress": KINDS_OF_RULES[:-1]}
    made.put("GlobalNetworkPolicy", "default.kinds", {**kinds, "egress": KINDS_OF_RULES})


def kernel(made: Lab) -> str:
    """All rules; with nf_tables also the numbers of the objects, which show what was made again."""
    if made.always:
        return made.ruleset()
    return NFT_COUNTERS.sub("", made.host.run("nft", "-a", "list", "ruleset").stdout)


@pytest.mark.parametrize("mode", ["Enabled", "Disabled", LONG])
def test_from_the_version_before(tmp_path: Path, earlier: Path, mode: str) -> None:
    """A policy of many rules is in parts, which are made anew beside the old ones: content gives them their names."""
    with lab(tmp_path) as made, ExitStack() as stack:
        made.always = {"FELIX_NFTABLESMODE": "Disabled"} if mode == "Disabled" else {}
        fill(made)
        if mode == LONG:
            nets = [f"10.8.{i // 250}.{i % 250}/32" for i in range(700)]
            rules = [{"action": "Deny", "protocol": "UDP", "source": {"nets": [net]}} for net in nets]
            made.put("GlobalNetworkPolicy", "default.long", {"order": 1, "selector": "app == 'b'", "ingress": rules})
        end = stack.enter_context(agent(made, earlier))
        assert made.passes("a", "b", 80) and not made.passes("a", "b", 81)
        before = kernel(made)
        with traffic(made, "a", "b", allowed=80, forbidden=81) as counts:
            until(lambda: counts.sent > 200, "packets beside the version before")
            end()
            stack.enter_context(agent(made, ROOT))
            sent = counts.sent
            until(lambda: counts.sent > sent + 200, "packets beside this version")
        assert (counts.allowed_arrived, counts.forbidden_arrived) == (counts.sent, 0), counts.missing[:20]
        assert mode == LONG or kernel(made).splitlines() == before.splitlines()
