"""calico-kube-controllers.service starts: its command line and environment file, as systemd would run them.

That is: root without any capability, a file system that may not be written except its RuntimeDirectory, its own /tmp.
The unit is read for each of these; only etcd's address and the kubeconfig's place are the test's.
"""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.controllers.health import why_not_ready
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.records import prepare, profile, wipe
from tests.e2e.kubernetes.roles import rights

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

UNITS = ROOT / "install" / "systemd"
SETUP = """set -e
own=$1; runtime=$2; checkout=$3; shift 3
mkdir -p $own/run/$runtime $own/given $own/scratch
cp $own/ca.crt $own/kubeconfig $own/given
mount --bind $own/given /mnt
mount --bind $own/run /run
mount -t tmpfs tmpfs $own/scratch
case $checkout in /tmp/*)  # the program itself
  mkdir -p "$own/scratch/${checkout#/tmp/}"
  mount --bind "$checkout" "$own/scratch/${checkout#/tmp/}" ;;
esac
mount --rbind $own/scratch /tmp
mount -o remount,bind,ro /
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"
"""


class UnitParser(configparser.ConfigParser):
    """Names keep their capital letters."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def service() -> configparser.SectionProxy:
    parser = UnitParser(strict=False, interpolation=None)
    parser.read(UNITS / "calico-kube-controllers.service")
    return parser["Service"]


def environment(**ours: str) -> dict[str, str]:
    """The environment file as systemd reads it, with our values for names that it sets."""
    lines = (UNITS / "calico-kube-controllers.env").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert ours.keys() <= found.keys()
    return {**found, **ours}


@pytest.fixture(params=["sources", pytest.param("frozen", marks=[pytest.mark.bundle, pytest.mark.slow])])
def program(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "sources":
        return [sys.executable, "-m", "cni_calico.controllers.main"]
    return [str(request.getfixturevalue("bundle") / "calico-kube-controllers")]


@pytest.fixture
def copied_records(kube: Cluster) -> Iterator[EtcdStore]:
    store = EtcdStore(EtcdConfig(endpoints=(f"http://127.0.0.1:{kube.etcd_port}",)))
    wipe(store)
    prepare(store, 0)
    yield store
    wipe(store)
    store.close()


def test_it_starts_works_and_ends(kube: Cluster, copied_records: EtcdStore, program: list[str], tmp_path: Path) -> None:
    unit, log = service(), tmp_path / "log"
    # what SETUP does for it
    assert unit["CapabilityBoundingSet"] == "" and unit["NoNewPrivileges"] == unit["PrivateTmp"] == "true"
    assert unit["ProtectSystem"] == "strict" and "User" not in unit
    kubeconfig = json.loads(Path(kube.kubeconfig("controllers-token")).read_text())
    kubeconfig["clusters"][0]["cluster"]["certificate-authority"] = "/mnt/ca.crt"
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    (tmp_path / "kubeconfig").chmod(0o600)
    (tmp_path / "ca.crt").write_bytes(Path(kube.ca).read_bytes())
    executable, *arguments = unit["ExecStart"].split()
    assert executable == "/opt/cni/bin/calico-kube-controllers"
    environ = environment(ETCD_ENDPOINTS=f"http://127.0.0.1:{kube.etcd_port}", KUBECONFIG="/mnt/kubeconfig")
    setup = ["unshare", "--mount", "--propagation=private", "sh", "-c", SETUP, "sh"]
    setup += [tmp_path, unit["RuntimeDirectory"], ROOT]
    with rights(kube, "calico-etcd.yaml"), log.open("wb") as out:
        process = subprocess.Popen(
            [*setup, *program, *arguments],
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **environ},
            cwd=ROOT,
            stdout=out,
            stderr=out,
        )
        try:
            status = tmp_path / "run" / Path(arguments[-1]).relative_to("/run")
            until(lambda: process.poll() is not None or not why_not_ready(status), "it is ready", 90)
            until(
                lambda: process.poll() is not None or profile(copied_records, "kns.space"), "a namespace's profile", 60
            )
            assert process.poll() is None, log.read_text()
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in log.read_text() and "cannot" not in log.read_text(), log.read_text()
