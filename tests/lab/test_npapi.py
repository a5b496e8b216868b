"""The network policy API's own conformance tests of ClusterNetworkPolicy, against the bundle's agent and plugin.

Rule: all features are asked for, the experimental ones too (nodes as peers, named ports). Only what this kernel lacks
is left out: where it has no SCTP, the tests of that alone by name, and of those that try several protocols the
connections by SCTP, which are counted; containers that serve nothing else wait there, because the pods must be
complete. What is counted is what the program prints about every test.

NPAPI_FOCUS, an expression, runs only the tests whose names it matches; NPAPI_LOG names a file to which the program
writes what it does as it goes, which stays when the run is stopped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, SUMMARY
from tests.deadlines import until
from tests.lab.host import BIN, end, has_sctp, start
from tests.lab.lab import Lab, install_bundle, running_lab

LIMIT_S = 5400
pytestmark = [
    pytest.mark.slow,
    pytest.mark.lab,
    pytest.mark.bundle,
    pytest.mark.npapi,
    pytest.mark.takes(1800),
    pytest.mark.timeout(LIMIT_S + 900),
]
FOCUS = os.environ.get("NPAPI_FOCUS", "")
LOG = os.environ.get("NPAPI_LOG", "")
DEFINITION = "policy.networking.k8s.io/v1alpha2"
TESTS = 24  # of version 0.2.0
_RESULT = re.compile(r"^ {4}--- (PASS|FAIL|SKIP): TestConformance/(\w+) ", re.MULTILINE)
_PART = re.compile(r"^ {8}--- PASS: TestConformance/\w+/", re.MULTILINE)


@pytest.fixture
def npapi_lab(busybox_image: Path, conformance_image: Path, own_bundle: Path) -> Iterator[Lab]:
    with running_lab(images=[busybox_image, conformance_image], bundle=own_bundle) as made:
        # before the agents: they need up to a minute to notice one that comes later
        made.apply(yaml.safe_load((ROOT / "manifests" / "clusternetworkpolicies.yaml").read_text()))
        until(lambda: DEFINITION in made.kubectl("api-versions"), "the definition is served", pause_s=0.1)
        # as in the manifests; a host-networked pod of the client's own node is this host
        install_bundle(made, FELIX_DEFAULTENDPOINTTOHOSTACTION="ACCEPT")
        yield made


def read_results(text: str) -> dict[str, str]:
    """By the test's name: PASS, FAIL or SKIP."""
    return {name: result for result, name in _RESULT.findall(text)}


def test_conformance_of_cluster_network_policies(npapi_lab: Lab, record_property: pytest.RecordProperty) -> None:
    skip = [] if has_sctp() else ["-test.skip=TestConformance/CNP.*SCTP"]
    log = Path(LOG or npapi_lab.directory / "npapi.log")
    environ = [f"KUBECONFIG={npapi_lab.plane.admin}", *(["LAB_WITHOUT_SCTP=1"] if skip else [])]
    process = start(
        log, *npapi_lab.plane.inside(
            "env", *environ, BIN / "npapi.test", "-test.v", f"-test.run=TestConformance$/{FOCUS}",
            f"-test.timeout={LIMIT_S}s", "-all-features", *skip,
        )
    )  # fmt: skip
    try:
        until(lambda: process.poll() is not None, f"the tests end; see {log}", timeout_s=LIMIT_S, pause_s=1)
    finally:
        end(process)
    said = log.read_text(errors="replace")
    results = read_results(said)
    counts = {result: sum(one == result for one in results.values()) for result in ("PASS", "FAIL", "SKIP")}
    left_out = f"{said.count('LEFT OUT: SCTP')} connections by SCTP left out"
    text = f"ClusterNetworkPolicy's conformance tests: {counts}, in {len(_PART.findall(said))} parts; {left_out}"
    record_property(SUMMARY, text)
    assert [name for name, result in results.items() if result != "PASS"] == [], said[-6000:]
    assert len(results) >= (1 if FOCUS else TESTS - (4 if skip else 0)), said[-6000:]
