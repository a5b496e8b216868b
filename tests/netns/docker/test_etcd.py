"""The driver on etcd, and while etcd does not answer: what starts is refused, what ends is gone, and owed."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable
from cni_calico.model.keys import HandleList, ResourceKey, ResourceList
from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.netns.docker.conftest import NEWER
from tests.netns.docker.machine import NAMESPACE, OLDEST, Machine, docker_machine
from tests.netns.docker.test_driver import LISTEN, answers
from tests.netns.docker.test_restarts import WAYS, die_at_every_step

pytestmark = [pytest.mark.netns, pytest.mark.docker, pytest.mark.etcd]

ETCD = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": "http://127.0.0.1:2379"}
POOL = {"cidr": "10.65.0.0/24", "blockSize": 28, "nodeSelector": "all()"}


def opened() -> Datastore:
    return open_datastore(parse_datastore(JsonFields({}), ETCD))


def set_up() -> None:
    """As calico-node does."""
    for kind, name, spec in (("IPPool", "pool", POOL), ("ClusterInformation", "default", {"datastoreReady": True})):
        document = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}, "spec": spec}
        opened().commit((Write.put(ResourceKey(kind, name), document),), Deadline.after(60))


def counts() -> tuple[int, int]:
    """How many records of Docker's containers, and handles."""
    store, soon = opened(), Deadline.after(60)
    records = store.list(ResourceList("WorkloadEndpoint", NAMESPACE), soon).items
    return len(records), len(store.list(HandleList(), soon).items)


def serves() -> bool:
    try:
        counts()
    except DatastoreUnavailable:
        return False
    return True


def start_etcd(machine: Machine) -> None:
    machine.start("etcd", f"{LAB_CACHE}/bin/etcd", "--data-dir", f"{machine.root}/etcd", "--unsafe-no-fsync")
    until(lambda: machine.lab.host.call(serves, timeout_s=120), "etcd answers", 120)


@pytest.fixture
def docker_on_etcd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Docker and the driver run before etcd does. With a test's long name containerd's socket has too long a path."""
    release, root = str(getattr(request, "param", OLDEST)), tmp_path_factory.mktemp("docker")
    with docker_machine(root, release, CALICO_DOCKER_POLICY_WAIT="1s", **ETCD) as machine:
        start_etcd(machine)
        machine.lab.host.call(set_up)
        yield machine
        directory = Path(machine.root, "etcd")
    shutil.rmtree(directory)


def test_an_outage_of_etcd(docker_on_etcd: Machine) -> None:
    box = docker_on_etcd
    box.network("web")
    address = box.run("stays", "web", command=LISTEN)
    for name in ("client", "ends"):
        box.run(name, "web")
    assert box.lab.host.call(counts) == (3, 3)
    box.end("etcd", signal.SIGKILL)
    said = box.refused("run", "-d", "--name", "late", "--network", "web", "box", "true")
    assert "no etcd endpoint answers" in said, said
    box.docker("rm", "-f", "ends", "late")
    assert answers(box, "client", address), "what runs is not touched"
    assert len(box.veths()) == 2, "the interface is gone at once"
    assert "to be released" in box.status() and "to be removed" in box.status()
    start_etcd(box)
    until(lambda: box.lab.host.call(counts) == (2, 2), "record and address are gone with it")
    until(lambda: len(box.files("addresses")) == len(box.files("endpoints")) == 2, "nothing is owed any more")
    box.docker("rm", "-f", "stays", "client")
    until(lambda: box.lab.host.call(counts) == (0, 0), "nothing is left, or owed, since etcd has just come back")


@pytest.mark.slow
@pytest.mark.takes(300)
@pytest.mark.parametrize(
    ("what", "docker_on_etcd"),
    [
        pytest.param(what, *release.values, marks=release.marks, id=f"{what}-{release.values[0]}")
        for what, release in zip(WAYS, (pytest.param(OLDEST), *NEWER), strict=True)
    ],
    indirect=["docker_on_etcd"],
)
def test_the_driver_dies_at_every_step(docker_on_etcd: Machine, what: str) -> None:
    """Each way with one release of Docker; the embedded datastore's (test_restarts.py) has each with all of them."""
    box = docker_on_etcd

    def is_clean() -> bool:
        files = box.files("endpoints") + box.files("addresses")
        return not (files or box.veths()) and box.lab.host.call(counts) == (0, 0)

    die_at_every_step(box, what, is_clean)
