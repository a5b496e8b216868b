"""A node is taken over from upstream's agent, whose rules are in force: ours come first, then upstream's go; no gap.

The rules are those that upstream's agent programmed for the records of tests/golden/policy/02 (nftables mode).
"""

from __future__ import annotations

import json
import os
import subprocess
import traceback
from pathlib import Path

import pytest

from cni_calico.daemon.stopping import Stopping
from cni_calico.kernel import netns
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.open import open_context
from cni_calico.nodeagent.felix import Felix
from cni_calico.nodeagent.parts import Parts
from tests.deadlines import until
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import Lab, documented_removal, lab, traffic
from tests.upstream_rules import GOLDEN, nft_script

pytestmark = pytest.mark.netns

NAME = "02-kubernetes-style"


def run_agent(host: Namespace, root: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        netns.enter(os.open(host.path, os.O_RDONLY))
        for name in ("run", "lib", "log"):
            (root / name).mkdir(exist_ok=True)
        environ = {
            "NODENAME": "n1",
            "DATASTORE_TYPE": "local",
            "DATASTORE_PATH": str(root / "store.db"),
            "CALICO_RUN_DIR": str(root / "run"),
            "CALICO_STATE_DIR": str(root / "lib"),
            "CALICO_LOG_DIR": str(root / "log"),
            "CALICO_NETWORKING_BACKEND": "none",
            "FELIX_ENDPOINTSTATUSPATHPREFIX": str(root),
            "CALICO_DISABLE_FILE_LOGGING": "false",
        }
        stopping = Stopping()
        opened = open_context(environ, "agent", stopping.wait, running=True)
        felix = Felix({"felix"}, environ, opened, stopping)
        felix.start()
        os._exit(Parts(felix).run())
    except BaseException:
        (root / "agent-died").write_text(traceback.format_exc())
    finally:
        os._exit(99)


def prepare(node: Lab) -> None:
    for document in json.loads((GOLDEN / f"{NAME}.input.json").read_text())["resources"]:
        metadata = document["metadata"]
        key = ResourceKey(document["kind"], metadata["name"], metadata.get("namespace", ""))
        node.put_document(key, document)
    load_upstream(node)
    node.connect("a", "calia", "10.65.0.1")
    node.connect("b", "calib", "10.65.0.2")


def load_upstream(node: Lab) -> None:
    command = ["nsenter", f"--net={node.host.path}", "nft", "-f", "-"]
    done = subprocess.run(command, input=nft_script(NAME), text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


def listed(node: Lab) -> str:
    return node.ruleset()


def test_from_upstream_without_a_gap(tmp_path: Path) -> None:
    with lab(tmp_path) as node:
        prepare(node)
        verdicts = {port: node.passes("a", "b", port) for port in (53, 80, 5353, 8080, 9999)}
        forbidden = next(port for port, passes in verdicts.items() if not passes)
        pid = 0
        try:
            with traffic(node, "a", "b", allowed=forbidden, forbidden=forbidden) as counts:
                pid = run_agent(node.host, tmp_path)

                def taken_over() -> bool:
                    text = listed(node)
                    return "-cali-" not in text and "table ip calico-policy" in text

                try:
                    until(taken_over, "upstream's rules are gone", 30)
                except AssertionError as e:
                    died = tmp_path / "agent-died"
                    log = tmp_path / "log" / "calico-node.log"
                    said = "".join(path.read_text() for path in (died, log) if path.exists())
                    raise AssertionError(f"{e}\n{said}\n{listed(node)}") from None
            assert counts.sent > 100
            assert (counts.allowed_arrived, counts.forbidden_arrived) == (0, 0)
            assert {port: node.passes("a", "b", port) for port in verdicts} == verdicts
        finally:
            if pid:
                os.kill(pid, 15)
                os.waitpid(pid, 0)


def test_back_to_upstream_without_a_gap(tmp_path: Path) -> None:
    """By docs/node.md: ours stop, upstream's rules come, ours go; nothing forbidden passes, nothing allowed is lost."""
    with lab(tmp_path) as node:
        prepare(node)
        node.host.run("nft", "flush", "ruleset")
        node.start()
        node.until_in_force(endpoints=2)
        verdicts = {port: node.passes("a", "b", port) for port in (53, 80, 5353, 8080, 9999)}
        forbidden = next(port for port, passes in verdicts.items() if not passes)
        assert node.passes("b", "a", 80)
        with (
            traffic(node, "a", "b", allowed=forbidden, forbidden=forbidden) as closed,
            traffic(node, "b", "a", allowed=80, forbidden=81) as open_,
        ):
            assert node.stop() == 0
            begun = closed.sent
            until(lambda: closed.sent > begun + 50, "packets without an agent")
            load_upstream(node)
            begun = closed.sent
            until(lambda: closed.sent > begun + 50, "packets under the rules of both")
            node.host.run("sh", "-c", documented_removal())
            begun = closed.sent
            until(lambda: closed.sent > begun + 50, "packets under upstream's rules")
        assert "calico-policy" not in node.ruleset() and "filter-cali-FORWARD" in node.ruleset()
        assert (closed.allowed_arrived, closed.forbidden_arrived) == (0, 0)
        assert open_.allowed_arrived == open_.sent > 100
        assert {port: node.passes("a", "b", port) for port in verdicts} == verdicts
        node.host.run("sh", "-c", documented_removal())  # again: nothing is left to remove
