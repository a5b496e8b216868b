"""Staged policies on host endpoints: what is said of real packets is what they do once it is enforced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.flows.host_parameters import HostParameters
from cni_calico.policy.failsafe import INBOUND, OUTBOUND
from tests.deadlines import until
from tests.netns.flows.test_judging import Judged
from tests.netns.flows.test_staged import beside
from tests.netns.policing.uplinked import HOST, OTHER, POD, Uplinked, uplinked_lab

pytestmark = [pytest.mark.netns]
OPEN = {"profiles": ["projectcalico-default-allow"]}
INTO_HOST, OUT_OF_HOST, INTO_WORKLOAD, OUT_OF_WORKLOAD = (
    (OTHER[4], HOST[4]),
    (HOST[4], OTHER[4]),
    (OTHER[4], POD[4]),
    (POD[4], OTHER[4]),
)


@pytest.fixture
def staging_hosts(tmp_path: Path) -> Iterator[tuple[Uplinked, Judged]]:
    with uplinked_lab(tmp_path) as uplinked:
        uplinked.put_host(**OPEN)
        uplinked.lab.beside = beside(tmp_path, HostParameters(INBOUND, OUTBOUND))
        uplinked.lab.start(FELIX_FLOWS="Enabled", FELIX_DEFAULTENDPOINTTOHOSTACTION="RETURN")
        uplinked.lab.until_in_force(hosts=1, endpoints=1)
        one = Judged(uplinked.lab, tmp_path)
        one.until("the recorder knows the rules", lambda said: said.get("judges", False))
        yield uplinked, one


def deny(*ports: int) -> list[dict[str, Any]]:
    return [{"action": "Deny", "protocol": "UDP", "destination": {"ports": list(ports)}}]


def predicted(seen: Judged, capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str, int], tuple[str, str]]:
    """By (from, to, port): what would be, and what decides, of what the recorder has."""
    assert run(["flows", "-o", "jsonl", "--staged", "--since", "1h"], {"CALICO_RUN_DIR": str(seen.root / "run")}) == 0
    found = {}
    for line in capsys.readouterr().out.splitlines():
        one = json.loads(line)
        at = one["source"]["ip"], one["destination"]["ip"], one["destination"].get("port", 0)
        last = one["staged"]["decided"][-1:]
        found[at] = one["staged"]["verdict"], last[0]["said"] if last else ""
    return found


def probe(uplinked: Uplinked, port: int) -> dict[tuple[tuple[str, str], int], bool]:
    """Whether a connection gets through, of each kind."""
    return {
        (INTO_HOST, port): uplinked.into_host(port),
        (OUT_OF_HOST, port): uplinked.out_of_host(port),
        (INTO_WORKLOAD, port): uplinked.into_workload(port),
        (OUT_OF_WORKLOAD, port): uplinked.out_of_workload(port),
    }


def test_what_is_said_is_what_it_does(
    staging_hosts: tuple[Uplinked, Judged], capsys: pytest.CaptureFixture[str]
) -> None:
    """One policy for each stage; the same policies are then enforced."""
    uplinked, seen = staging_hosts
    policies = {
        "own": {"types": ["Ingress", "Egress"], "ingress": deny(81), "egress": deny(82)},
        "through": {
            "applyOnForward": True,
            "types": ["Ingress", "Egress"],
            "ingress": [*deny(83), {"action": "Allow"}],
            "egress": [*deny(84), {"action": "Allow"}],
        },
        "before": {"preDNAT": True, "applyOnForward": True, "types": ["Ingress"], "ingress": deny(85)},
        "untracked": {"doNotTrack": True, "applyOnForward": True, "types": ["Ingress"], "ingress": deny(86)},
    }
    ports = range(80, 87)
    for n, (name, spec) in enumerate(policies.items()):
        staged = {"order": 10 + n, "selector": "host == 'yes'", **spec}
        if name == "own":  # what no rule of it decides stays open
            rest = [{"action": "Allow"}]
            staged |= {"ingress": [*deny(81), *rest], "egress": [*deny(82), *rest], "order": 5}
        policies[name] = staged
        uplinked.lab.put("StagedGlobalNetworkPolicy", name, staged)
    seen.until("the recorder knows them", lambda said: said.get("staged_policies") == len(policies))
    for port in ports:
        assert all(probe(uplinked, port).values())  # nothing of it is done

    def is_told() -> bool:
        found = predicted(seen, capsys)
        return len([one for one in found if one[2] in ports]) == 4 * len(ports) and all(
            verdict != "unknown" for (source, *_), (verdict, _) in found.items() if source != OTHER[4]
        )

    until(is_told, "all connections are told of", pause_s=0.2)
    said = predicted(seen, capsys)
    counted = {
        "own": {"allow": 10, "deny": 2, "changed": 2},
        "through": {"allow": 6, "deny": 1, "changed": 1},
        "before": {"deny": 1, "changed": 1},
        "untracked": {"deny": 1, "changed": 1},
    }
    assert seen.says()["staged"] == {f"StagedGlobalNetworkPolicy {name}": its for name, its in counted.items()}
    for name, spec in policies.items():
        uplinked.lab.put("GlobalNetworkPolicy", name, spec)
        uplinked.lab.remove("StagedGlobalNetworkPolicy", name)
    uplinked.lab.until_in_force(hosts=1, policies=len(policies))
    denied = set()
    for port in ports:
        for (ends, _), passes in probe(uplinked, port).items():
            verdict, by = said[*ends, port]
            assert verdict != "unknown" or ends == INTO_WORKLOAD  # it is not known yet whether that was translated
            if verdict != "unknown":
                assert (verdict == "allowed") is passes, (ends, port, verdict, by)
            if verdict == "denied":
                denied.add(by)
    assert denied >= {
        "ingress: staged own rule 0",
        "egress: staged own rule 0",
        "egress: staged through rule 0",
        "ingress: staged before rule 0",
        "ingress: staged untracked rule 0",
    }
