"""calicoctl that nobody told which datastore, on a host that was set up for one: in a mount namespace with its own
/etc, /var/lib and /run.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cni_calico.directories import STATE_DIR
from cni_calico.nodeagent.status.file import since_boot
from tests.conftest import ROOT

pytestmark = pytest.mark.netns

STORE = f"{STATE_DIR}/datastore.db"
POOL = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "IPPool",
    "metadata": {"name": "p"},
    "spec": {"cidr": "10.9.0.0/16"},
}
FRESH = "for d in /etc /var/lib /run; do mount -t tmpfs none $d; done; mkdir -p /etc/calico /run/calico"
WRITE = f"{sys.executable} -m cni_calico.ctl.main apply -f -"


def on_host(script: str) -> subprocess.CompletedProcess[str]:
    """Run after each other in a host that has nothing; the pool is on standard input."""
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{FRESH}; {script}"],
        input=json.dumps(POOL),
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "CALICO_RUN_DIR": "/run/calico"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_file_that_is_made_is_named() -> None:
    done = on_host(f"{WRITE} && test -e {STORE}")
    assert done.returncode == 0, done.stderr
    assert f"Made the embedded datastore: {STORE}" in done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ("DATASTORE_TYPE=etcdv3\nETCD_ENDPOINTS='https://10.0.0.10:2379'\n", "uses etcdv3 https://10.0.0.10:2379"),
        ("DATASTORE_TYPE=kubernetes\n", "uses kubernetes"),
        ("DATASTORE_TYPE=local\nDATASTORE_PATH=/srv/other.db\n", "uses local /srv/other.db"),
    ],
)
def test_the_node_is_set_up_for_another(variables: str, said: str) -> None:
    done = on_host(f"printf '{variables}' > /etc/calico/calico-node.env; {WRITE}; s=$?; test ! -e {STORE} && exit $s")
    assert done.returncode == 1 and said in done.stderr and "set -a; . /etc/calico/calico-node.env" in done.stderr


def test_the_agent_that_runs_uses_another() -> None:
    status = json.dumps({"datastore": "etcdv3 https://10.0.0.10:2379", "updated": since_boot()})
    done = on_host(f"echo '{status}' > /run/calico/agent-status.json; {WRITE}; s=$?; test ! -e {STORE} && exit $s")
    assert done.returncode == 1 and "the agent that runs on this host uses etcdv3" in done.stderr


def test_an_agent_that_has_ended_uses_none() -> None:
    """Its status is not of now: nobody holds the lock that it says there is."""
    status = json.dumps({"datastore": "etcdv3 https://10.0.0.10:2379", "updated": since_boot(), "locked": True})
    done = on_host(f"echo '{status}' > /run/calico/agent-status.json; {WRITE} && test -e {STORE}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("made_by", ["printf '\\377=1\\n' >", "mkdir"])
def test_what_the_node_is_set_up_for_cannot_be_read(made_by: str) -> None:
    """It may be any datastore, so nothing is written."""
    done = on_host(f"{made_by} /etc/calico/calico-node.env; {WRITE}; s=$?; test ! -e {STORE} && exit $s")
    assert done.returncode == 1 and "calico-node's /etc/calico/calico-node.env cannot be used" in done.stderr


@pytest.mark.parametrize("variables", ["#DATASTORE_TYPE=etcdv3\n", "DATASTORE_TYPE=local\n"])
def test_the_node_uses_the_same(variables: str) -> None:
    done = on_host(f"printf '{variables}' > /etc/calico/calico-node.env; {WRITE} && test -e {STORE}")
    assert done.returncode == 0, done.stderr


def test_a_datastore_that_is_named_counts() -> None:
    variables = "DATASTORE_TYPE=etcdv3\nETCD_ENDPOINTS=https://10.0.0.10:2379\n"
    done = on_host(
        f"printf '{variables}' > /etc/calico/calico-node.env; DATASTORE_TYPE=local {WRITE} && test -e {STORE}"
    )
    assert done.returncode == 0, done.stderr
