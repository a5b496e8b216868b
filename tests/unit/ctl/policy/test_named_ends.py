"""What ``policy show`` needs to find a workload, and how a published port is written."""

import subprocess
import sys

import pytest

from cni_calico.ctl.policy.named_ends import HostPort, parse_host_port
from cni_calico.errors import InvalidConfig
from tests.conftest import ROOT

# what only explaining a connection, flows or files need: a third of what showing policies would import with them
_OTHERS = ("ctl.policy.explain", "ctl.policy.lifelines", "flows.query", "model.validation.check")


def test_showing_policies_imports_nothing_of_explaining_them():
    text = "import sys, cni_calico.ctl.policy.show; print(*(name for name in sys.modules if 'cni_calico' in name))"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "cni_calico.ctl.policy.named_ends" in done.stdout.split()
    assert [name for name in _OTHERS if f"cni_calico.{name}" in done.stdout.split()] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("192.0.2.1:80", HostPort("192.0.2.1", 80)),
        ("[2001:db8::1]:8080", HostPort("2001:db8::1", 8080)),
        ("node-1:30080", HostPort("node-1", 30080)),
        ("2001:db8::1", None),
        ("shop/web", None),
        ("hostendpoint:eth0", None),
    ],
)
def test_a_published_port(text, found):
    assert parse_host_port(text) == found


@pytest.mark.parametrize("text", ["node-1:0", "node-1:65536", "node-1:http", ":80"])
def test_a_port_that_is_none_is_refused(text):
    with pytest.raises(InvalidConfig, match="neither a workload nor HOST:PORT"):
        parse_host_port(text)
