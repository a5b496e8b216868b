"""On a host where upstream's libnetwork plugin ran: its containers go on, and what it has stored goes with them.

Rule: upstream's plugin is not here. What it would have stored is made of what ours has: a record under the same name
with upstream's fields alone, a veth without an alias, an address without a handle, and no file.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import BlockList, HandleList
from tests.deadlines import until
from tests.netns.docker.machine import NAMESPACE, Machine
from tests.netns.docker.test_driver import LISTEN, answers

pytestmark = [pytest.mark.netns, pytest.mark.docker]


def make_former(box: Machine, *names: str) -> dict[str, dict[str, Any]]:
    """All that the driver has made is upstream's from now on; the records, by name."""
    box.end("driver")
    shutil.rmtree(box.root / "state" / "docker")
    for name in box.veths():
        box.lab.host.do("link", "set", name, "alias", "")
    writes = []
    for item in box.lab.stored(BlockList()):
        document = dict(item.value)
        document["attributes"] = [{"handle_id": None, "secondary": {}} for _ in document["attributes"]]
        writes.append(Write.put(item.key, document))
    writes += [Write.remove(item.key) for item in box.lab.stored(HandleList())]
    records = {}
    for name, document in box.records().items():
        metadata, spec = document["metadata"], document["spec"]
        labels = metadata["labels"].items()
        metadata["labels"] = {key: value for key, value in labels if key.startswith("projectcalico")}
        metadata.pop("annotations", None)
        spec.pop("containerID")
        records[name] = document
        box.lab.put_document(box.record_key(metadata["name"]), document)
    box.lab.write(writes)
    box.start_driver()
    assert set(records) == set(names)
    return records


def assigned(box: Machine) -> int:
    """How many addresses are assigned."""
    blocks = box.lab.stored(BlockList())
    return sum(index is not None for item in blocks for index in item.value["allocations"])


def test_what_runs_goes_on_and_goes_when_it_ends(box: Machine) -> None:
    box.network("web")
    address = box.run("old", "web", command=LISTEN)
    for name in ("ends", "client", "dies"):
        box.run(name, "web")
    records = make_former(box, "old", "ends", "client", "dies")
    assert assigned(box) == 4 and not box.handles()
    until(lambda: len(box.files("networks")) == 1, "the network is known, by its name")
    assert answers(box, "client", address), "nothing that runs is touched"
    assert len(box.lab.documents("WorkloadEndpoint", NAMESPACE)) == len(box.veths()) == 4
    box.docker("rm", "-f", "ends")
    assert assigned(box) == len(box.veths()) == 3
    box.docker("restart", "-t", "0", "client")
    assert box.records()["client"]["spec"]["profiles"] == ["web"] and len(box.handles()) == 1
    assert answers(box, "client", address)
    box.docker("network", "create", "--driver", "calico", "--ipam-driver", "calico-ipam", "more")
    box.kill_docker()
    box.start_docker()
    left = {record["spec"]["endpoint"] for record in records.values()}
    until(lambda: not left & {record["spec"]["endpoint"] for record in box.records().values()}, "their records go")
    until(lambda: assigned(box) == len(box.veths()) == 0, "a killed dockerd only releases addresses")


def test_records_of_containers_that_docker_does_not_have(box: Machine) -> None:
    """After a reboot, or if Docker's own state is lost."""
    box.network("web")
    box.run("stays", "web")
    kept = box.records()["stays"]
    gone = {**kept, "metadata": {**kept["metadata"]}, "spec": {**kept["spec"]}}
    gone["spec"] |= {"endpoint": "d" * 64, "interfaceName": "calidddddddddd", "ipNetworks": ["10.65.0.200/32"]}
    gone["metadata"]["name"] = f"n1-libnetwork-libnetwork-{'d' * 64}"
    box.end("driver")
    box.lab.put_document(box.record_key(gone["metadata"]["name"]), gone)
    box.start_driver()
    until(
        lambda: [each["spec"]["endpoint"] for each in box.records().values()] == [kept["spec"]["endpoint"]], "one goes"
    )
