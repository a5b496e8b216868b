"""What older deployments and scripts rely on, or ask for in vain, on a node whose calico-node runs."""

from __future__ import annotations

import subprocess

import pytest

from cni_calico.model.resources import Metadata, Resource
from tests.deadlines import until
from tests.netns.nodes import Node

pytestmark = pytest.mark.netns

NAMES = ("felix", "confd", "bird", "bird6", "node-services")


def sv(node: Node, *words: str) -> list[str]:
    done = node.calico_node("sv", *words, check=False)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def process(line: str) -> int:
    """Of "run: /etc/service/enabled/felix: (pid 12) 3s"."""
    return int(line.partition("(pid ")[2].partition(")")[0])


def bird_says(node: Node, socket: str) -> str:
    argv = ["birdc", "-s", f"{node.root}/run/{socket}", "show", "status"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout


@pytest.mark.bird
def test_services_by_the_names_of_runits(agent_node: Node) -> None:
    """``sv status|hup|restart`` with and without their directory, and ``restart-calico-confd``."""
    agent_node.more = {"CALICO_NETWORKING_BACKEND": "bird"}
    agent_node.run().until_applied()
    until(lambda: "Daemon is up and running" in bird_says(agent_node, "bird.ctl"), "BIRD is up", 60)
    assert "Daemon is up and running" in bird_says(agent_node, "bird6.ctl")
    for names in (NAMES, tuple(f"/etc/service/enabled/{name}" for name in NAMES)):
        lines = sv(agent_node, "status", *names)
        assert [line.partition(": (pid")[0] for line in lines] == [f"run: /etc/service/enabled/{n}" for n in NAMES]
    felix, confd, bird, bird6, services = (process(line) for line in sv(agent_node, "status", *NAMES))
    assert felix == confd == services != bird == bird6
    for name in ("confd", "bird", "bird6"):  # BIRD reads its configuration again
        sv(agent_node, "hup", name)
        assert (
            process(sv(agent_node, "status", "bird")[0]) == bird
            and process(sv(agent_node, "status", "felix")[0]) == felix
        )
    assert process(sv(agent_node, "restart", "bird6")[0]) != bird
    assert process(sv(agent_node, "restart", "confd")[0]) != felix  # what the image's restart-calico-confd is
    until(
        lambda: agent_node.status().get("pid") not in (None, felix) and agent_node.status().get("synced"),
        "it is back",
        60,
    )
    refused = agent_node.calico_node("sv", "down", "felix", check=False)
    assert refused.returncode == 100 and "usage: sv" in refused.stderr


ASKED_FOR = {
    "FELIX_XDPENABLED": "true",
    "FELIX_BPFENABLED": "true",
    "FELIX_FLOWLOGSPOLICYEVALUATIONMODE": "Continuous",
    "FELIX_NOSUCHPARAMETER": "1",
    "FELIX_USAGEREPORTINGENABLED": "true",
}
IN_A_RESOURCE = {"xdpRefreshInterval": "9s", "openstackRegion": "one", "dataplaneDriver": "calico-vpp"}


def test_what_it_does_not_do_is_named_in_its_status(agent_node: Node) -> None:
    """Each variable and each field that asks for what is not there, with what follows from it; what is lost by none of
    the others is in docs/compatibility.md alone.
    """
    agent_node.more = ASKED_FOR
    agent_node.calico_node("-startup")
    agent_node.store.put(
        Resource("FelixConfiguration", Metadata("default"), {**IN_A_RESOURCE, "usageReportingEnabled": True})
    )
    agent_node.run("-felix").until_applied()
    warnings = agent_node.status()["warnings"]
    silent = {"FELIX_USAGEREPORTINGENABLED", "FELIX_XDPENABLED", "FELIX_FLOWLOGSPOLICYEVALUATIONMODE"}
    silent |= {"xdpRefreshInterval", "dataplaneDriver"}
    named = {
        name
        for name in ASKED_FOR.keys() | IN_A_RESOURCE.keys()
        for text in warnings
        if text.startswith((f"{name} ", f"{name}="))
    }
    assert named == (ASKED_FOR.keys() | IN_A_RESOURCE.keys()) - silent, warnings
    assert not [text for text in warnings if "sage" in text]
    text = "\n".join(warnings)
    assert "no parameter has this name" in text and "openstackRegion of FelixConfiguration default='one'" in text
    shown = agent_node.calico_node("-show-status").stdout
    assert all(f"warning:    {warning}" in shown for warning in warnings)
    assert all(warning in agent_node.log() for warning in warnings)


def test_metrics_on_both_families(agent_node: Node) -> None:
    """Also without an address to listen on in the parameters; a probe of an older manifest asks 127.0.0.1."""
    agent_node.run().until_ready()
    for url in ("http://127.0.0.1:9091/metrics", "http://[::1]:9091/metrics", "http://127.0.0.1:9099/liveness"):
        done = agent_node.ns.run("curl", "-fsS", url, check=False)
        assert done.returncode == 0 and done.stdout, (url, done)
