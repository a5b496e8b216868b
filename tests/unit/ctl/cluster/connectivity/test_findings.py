"""What a check says it found, reads from its pods, and asks of a cluster."""

import json

import pytest

from cni_calico.ctl.cluster.connectivity import objects
from cni_calico.ctl.cluster.connectivity.chain import find_network
from cni_calico.ctl.cluster.connectivity.findings import (
    FAILED,
    OK,
    SKIPPED,
    Trial,
    TrialPlan,
    missing_families,
    parse_plan,
    render_finding,
    render_plan,
    render_sum,
)
from cni_calico.ctl.cluster.connectivity.inside import Progress, act
from cni_calico.ctl.cluster.connectivity.pod_namespace import PodPlace
from cni_calico.ctl.cluster.connectivity.pods import choose_places
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import InvalidConfig

CONDITIONS = {"conditions": [{"type": "Ready", "status": "True"}]}


def node(name, ready="True"):
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def agent(name, image="calico/node:1"):
    containers = [{"name": "other", "image": "x"}, {"name": "calico-node", "image": image}]
    return {"spec": {"nodeName": name, "containers": containers}, "status": CONDITIONS}


def test_lines_and_their_sum():
    findings = [Trial("pods", OK, "a to b"), Trial("IPv4 MTU", FAILED, "why"), Trial("DNS", SKIPPED, "none")]
    assert "".join(map(render_finding, findings)) == (
        "ok         pods: a to b\nfailed     IPv4 MTU: why\nnot tried  DNS: none\n"
    )
    assert render_sum(findings) == "the network does not work: IPv4 MTU"
    assert render_sum([Trial("DNS", SKIPPED)]) == ""


def test_a_plan_comes_into_the_pod_as_it_was():
    plan = TrialPlan(["10.0.0.1", "fd00::1"], ["10.96.0.9"], {"kubernetes.default": "10.96.0.1"}, policed=False)
    assert parse_plan(render_plan(plan)) == plan


@pytest.mark.parametrize("text", ["", "{}", "[]", "5", '{"addresses": []}'])
def test_a_plan_that_is_none(text):
    with pytest.raises(InvalidConfig, match="cannot read the plan of a check"):
        act(text, print)


def test_a_family_without_addresses():
    assert missing_families(["10.0.0.1", "fd00::1"]) == []
    assert missing_families(["10.0.0.1"]) == [Trial("IPv6", SKIPPED, "pods get no IPv6 address")]


def test_what_a_log_says():
    finding = {"what": "DNS", "outcome": OK, "text": "x"}
    lines = [json.dumps({"finding": finding}), json.dumps({"forbid": True}), "Traceback", '"finding"', "3"]
    progress = Progress("\n".join(lines))
    assert progress.findings == [Trial(**finding)]
    assert (progress.wants_policy, progress.is_done) == (True, False)
    assert progress.others[0] == "Traceback"
    assert Progress('{"done": true}').is_done


class TestPlaces:
    def test_two_nodes_that_are_ready(self):
        nodes, agents = [node("a", "False"), node("b"), node("c"), node("d")], [agent(n, f"i/{n}") for n in "abcd"]
        assert choose_places(nodes, agents, []) == [PodPlace("b", "i/b"), PodPlace("c", "i/c")]
        assert choose_places(nodes, agents, ["d", "b"]) == [PodPlace("d", "i/d"), PodPlace("b", "i/b")]

    @pytest.mark.parametrize(
        ("nodes", "agents", "wanted", "said"),
        [
            ([node("a")], [agent("a")], ["z"], "cannot check the network: there is no node z"),
            ([node("a", "False")], [agent("a")], [], "no node can take a pod: a: its kubelet does not report"),
            (
                [node("a"), node("b")],
                [agent("a")],
                ["a", "b"],
                "no node can take a pod: a: ready; b: no calico-node pod",
            ),
            ([node("a")], [], [], "no node can take a pod: a: no calico-node pod"),
        ],
    )
    def test_nodes_that_cannot_take_one(self, nodes, agents, wanted, said):
        with pytest.raises(CommandFailed, match=said):
            choose_places(nodes, agents, wanted)


class TestNetwork:
    def test_the_first_that_is_calicos(self, tmp_path):
        (tmp_path / "10-a.conflist").write_text('{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}')
        (tmp_path / "20-b.conf").write_text('{"name": "b", "cniVersion": "0.4.0", "type": "calico"}')
        found = find_network(str(tmp_path), "/bin")
        assert (found.name, found.version, found.plugins[0]["type"]) == ("b", "0.4.0", "calico")
        assert find_network(str(tmp_path / "10-a.conflist"), "/bin").name == "a"

    def test_none(self, tmp_path):
        with pytest.raises(CommandFailed, match="no network of Calico is configured in"):
            find_network(str(tmp_path), "/bin")
        with pytest.raises(CommandFailed, match=r"no network of Calico is configured in .*/none: No such file"):
            find_network(str(tmp_path / "none"), "/bin")

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"plugins": []}', '{"plugins": [{}]}', '{"plugins": 5}'])
    def test_what_is_none(self, tmp_path, text):
        (tmp_path / "a.conflist").write_text(text)
        with pytest.raises(InvalidConfig, match="cannot read network configuration"):
            find_network(str(tmp_path / "a.conflist"), "/bin")


def test_why_a_pod_does_not_run():
    waiting = {"waiting": {"reason": "ErrImageNeverPull", "message": "no image x"}}
    assert objects.why_not_running({"status": {"containerStatuses": [{"state": waiting}]}}) == (
        "ErrImageNeverPull: no image x"
    )
    creating = {"waiting": {"reason": "ContainerCreating"}}
    assert objects.why_not_running({"status": {"containerStatuses": [{"state": creating}]}}) == ""
    assert objects.why_not_running({"status": {"message": "Pod was rejected"}}) == "Pod was rejected"
