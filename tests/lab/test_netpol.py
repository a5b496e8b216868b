"""Kubernetes' own end-to-end tests of network policies (its suite "Netpol"), against the bundle's agent and plugin.

Rule: what is counted is what the suite's report says about every one of its tests; one that is not run is named here
with its reason. Where this kernel has SCTP, the tests of SCTP run, too; where it has not, what they ask is tried in the
machines of tests/kernels (tests/netns/policing/test_netpol_sctp.py).

kube-proxy is in iptables mode; NETPOL_PROXY names another one (nftables): the suite asks of it only that services'
addresses lead to pods, which tests/lab/test_policies.py asks in both. NETPOL_FOCUS, an expression, runs only the tests
of the suite whose names it matches; NETPOL_LOG names a file to which the suite writes what it does as it goes, which
stays when the run is stopped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import SUMMARY
from tests.deadlines import until
from tests.lab.host import BIN, end, has_sctp, start
from tests.lab.lab import Lab, install_bundle, running_lab
from tests.lab.node import DNS_DOMAIN
from tests.lab.proxy import install_kube_proxy

HOURS = 3
pytestmark = [
    pytest.mark.slow,
    pytest.mark.lab,
    pytest.mark.bundle,
    pytest.mark.takes(1200),
    pytest.mark.timeout((HOURS + 1) * 3600),
]
SUITE = r"\[sig-network\] Netpol"
FOCUS = os.environ.get("NETPOL_FOCUS", "")
LOG = os.environ.get("NETPOL_LOG", "")
PROXY = os.environ.get("NETPOL_PROXY") or "iptables"
SCTP = "[Feature:SCTPConnectivity]"
AT_LEAST = 47  # tests in version 1.34 that need no SCTP


@dataclass
class Report:
    """Names of tests; ``failed`` with what was said."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


@pytest.fixture
def netpol_lab(busybox_image: Path, agnhost_image: Path, own_bundle: Path) -> Iterator[Lab]:
    with running_lab(images=[busybox_image, agnhost_image], bundle=own_bundle) as made:
        install_bundle(made)
        install_kube_proxy(made, PROXY)  # the tests connect to services' addresses
        yield made


def test_kubernetes_suite_of_network_policies(netpol_lab: Lab, record_property: pytest.RecordProperty) -> None:
    skip = [] if has_sctp() else [SCTP]
    report = run_suite(netpol_lab, skip)
    counts = f"{len(report.passed)} passed, {len(report.failed)} failed, {len(report.skipped)} skipped"
    record_property(SUMMARY, f"Kubernetes' suite Netpol{f' ({FOCUS})' if FOCUS else ''}: {counts}")
    assert not report.failed, "\n".join(f"{name}: {text[:2000]}" for name, text in report.failed.items())
    wanted = [name for name in report.skipped if re.search(FOCUS, name)]
    assert [name for name in wanted if not any(word in name for word in skip)] == []
    assert len(report.passed) >= (1 if FOCUS else AT_LEAST)


def run_suite(lab: Lab, skip: list[str]) -> Report:
    file, log = lab.directory / "netpol.xml", Path(LOG or lab.directory / "netpol.log")
    words = [f"--ginkgo.skip={re.escape(word)}" for word in skip]
    process = start(
        log, *lab.plane.inside(
            BIN / "e2e.test", f"--kubeconfig={lab.plane.admin}", "--provider=skeleton", f"--dns-domain={DNS_DOMAIN}",
            f"--ginkgo.focus={SUITE}.*(?:{FOCUS})", *words, f"--ginkgo.junit-report={file}",
            f"--ginkgo.timeout={HOURS}h", "--ginkgo.no-color", "--ginkgo.v",
        )
    )  # fmt: skip
    try:
        until(lambda: process.poll() is not None, f"the suite ends; see {log}", timeout_s=HOURS * 3600, pause_s=1)
        assert file.exists(), log.read_text(errors="replace")[-4000:]
    finally:
        end(process)
    return read_report(file)


def read_report(file: Path) -> Report:
    """Of the suite's own tests: a report has all others, too, as skipped."""
    report = Report()
    for case in ElementTree.parse(file).iter("testcase"):
        name, status = case.get("name", ""), case.get("status")
        if "[sig-network] Netpol" not in name:
            if status not in ("skipped", "passed"):
                report.failed[name] = _said(case)
        elif status == "passed":
            report.passed.append(name)
        elif status == "skipped":
            report.skipped.append(name)
        else:
            report.failed[name] = _said(case)
    return report


def _said(case: ElementTree.Element) -> str:
    return " ".join(f"{child.tag}: {child.get('message', '')} {(child.text or '')[:1500]}" for child in case)
