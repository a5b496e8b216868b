"""A bounded part of the harness: a few calls under faults in every run, more of them where there is time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SHORT = ("--operations=60", "--workers=3", "--pace=0.3")
LONG = ("--operations=600", "--workers=6")
ALSO = ("--also=limits", "--also=host-end")
ETCD, KUBERNETES = pytest.mark.etcd, pytest.mark.kubernetes
slow = pytest.mark.slow
WAYS = [
    pytest.param(SHORT, id="embedded, served"),
    pytest.param((*SHORT, "--mode=one-shot", *ALSO), id="embedded, one-shot"),
    pytest.param((*LONG, "--mode=one-shot", "--power"), marks=slow, id="embedded, one-shot, with power cuts"),
    pytest.param(("--operations=800", "--workers=16", *ALSO), marks=slow, id="embedded, served, 16 processes"),
    pytest.param((*LONG, "--mode=agent", "--power"), marks=slow, id="embedded, agent, with power cuts"),
    pytest.param(
        (*LONG, "--store=etcd", "--members=3", "--hosts=2", "--also=leader"), marks=[slow, ETCD], id="etcd of three"
    ),
    pytest.param((*LONG, "--store=etcd", "--mode=agent", "--hosts=3"), marks=[slow, ETCD], id="etcd, three agents"),
    pytest.param((*LONG, "--store=kubernetes", "--hosts=2"), marks=[slow, KUBERNETES], id="an API server"),
]


@pytest.mark.netns
@pytest.mark.takes(20)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arguments", WAYS)
def test_nothing_is_violated(arguments: tuple[str, ...]) -> None:
    """The run prints its seed; with it the same decisions are taken again."""
    argv = [sys.executable, "-m", "tests.faults", *arguments]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    about = json.loads(done.stdout)
    asked = int(arguments[0].partition("=")[2])
    assert about["violations"] == [] and sum(about["operations"].values()) > asked / 2
    assert sum(about["faults"].values()) > 2, about
