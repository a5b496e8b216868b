"""How calico-kube-controllers end: in time and with status 0, also while nobody answers them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.programs import lay_out_sources, on_etcd
from tests.e2e.kubernetes.records import prepare, profile, wipe
from tests.e2e.kubernetes.roles import rights

pytestmark = pytest.mark.kubernetes
ALL = "policy,namespace,serviceaccount,workloadendpoint,node,loadbalancer"


@contextmanager
def silent(kube: Cluster) -> Iterator[None]:
    """Neither the API server nor etcd answers; their connections stay."""
    processes = list(kube.processes.values())
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


@pytest.fixture
def etcd_beside(kube: Cluster) -> Iterator[EtcdStore]:
    """The API server's own etcd, as many clusters have it, without Calico's records."""
    store = EtcdStore(EtcdConfig(endpoints=(f"http://127.0.0.1:{kube.etcd_port}",)))
    wipe(store)
    yield store
    wipe(store)
    store.close()


def test_a_signal_ends_them_in_time_though_nobody_answers(
    kube: Cluster, etcd_beside: EtcdStore, tmp_path: Path
) -> None:
    """As in the container: the wrapper kills after 8 s, which would be status 137."""
    prepare(etcd_beside, 0)
    lay_out_sources(tmp_path / "image")
    programs, log = tmp_path / "image" / "usr" / "bin", tmp_path / "log"
    argv = [programs / "wrapper", programs / "kube-controllers", "-status-file", tmp_path / "status.json"]
    environ = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": kube.kubeconfig("controllers-token"),
        **on_etcd(kube, ENABLED_CONTROLLERS=ALL),
    }
    with rights(kube, "calico-etcd.yaml"), log.open("wb") as out:
        process = subprocess.Popen(argv, env=environ, stdout=out, stderr=out)
        try:
            until(lambda: profile(etcd_beside, "kns.space"), "the namespace's profile", 90)
            with silent(kube):
                process.terminate()
                assert process.wait(60) == 0, log.read_text()
        finally:
            process.terminate()
            process.wait(30)  # it ends what it wraps
    assert "Traceback" not in log.read_text()
