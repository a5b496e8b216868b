"""Who a container is, from Docker's own files and what its API answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.docker.containers import find_container, is_guest, read_container, read_members
from cni_calico.docker.engine import DockerEngine
from cni_calico.log import SILENT
from tests.deadlines import SOON


class Answering(DockerEngine):
    """An engine whose answers are these."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__("/nowhere", SILENT)
        self.answers = answers

    def ask(self, path: str, deadline: Deadline) -> Any:
        return self.answers.get(path.split("?")[0])


def test_a_network_lists_an_endpoint_that_is_being_joined() -> None:
    containers = {"ep-ab12": {"Name": "web", "EndpointID": "ab12"}, "c" * 64: {"Name": "db", "EndpointID": "cd34"}}
    engine = Answering({"/networks/net": {"Name": "shop", "Containers": containers}})
    members = read_members(engine, "net", SOON)
    assert (members.name, members.found, dict(members.endpoints)) == ("shop", True, {"ab12": "web", "cd34": "db"})
    assert not read_members(engine, "other", SOON).found


def test_a_container_by_its_name() -> None:
    listed = [{"Id": "c" * 64, "Names": ["/web"], "Image": "box", "Labels": {"app": "a"}}]
    found = read_container(Answering({"/containers/json": listed}), "web", SOON)
    assert found is not None and found.identity.name == "web" and found.identity.labels == {"app": "a"}
    assert read_container(Answering({"/containers/json": []}), "web", SOON) is None
    assert read_container(Answering({"/containers/json": {"x": 1}}), "web", SOON) is None


def test_a_container_in_another_one_s_namespace_does_not_own_it(tmp_path: Path) -> None:
    for name, mode in (("a" * 64, "shop"), ("b" * 64, f"container:{'a' * 64}")):
        directory = tmp_path / "containers" / name
        directory.mkdir(parents=True)
        (directory / "hostconfig.json").write_text(json.dumps({"NetworkMode": mode}))
    assert not is_guest("a" * 64, str(tmp_path)) and is_guest("b" * 64, str(tmp_path))
    assert not is_guest("c" * 64, str(tmp_path)), "it has no file: the next step says that it is not known"


def test_a_namespace_that_is_nobody_s(tmp_path: Path) -> None:
    """Also one whose processes are in no container's control group, as these here are."""
    assert find_container(str(tmp_path / "absent"), str(tmp_path)) is None
    (tmp_path / "file").write_text(json.dumps({}))
    assert find_container(str(tmp_path / "file"), str(tmp_path)) is None
    assert find_container(f"/proc/{os.getpid()}/ns/net", str(tmp_path)) is None
