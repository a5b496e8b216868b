"""What ``calico-docker -status`` says."""

from __future__ import annotations

from pathlib import Path

from cni_calico.docker.state import DockerEndpoint, DockerNetwork, DockerState, HeldAddress
from cni_calico.docker.status import render_status
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT

EXPECTED = """\
node n1: the driver answers
networks 1, endpoints 3, addresses 1, to be released 1
ENDPOINT      CONTAINER  NETWORK  ADDRESSES  INTERFACE        STATE          PORTS
aaaaaaaaaaaa  web        shop     10.65.0.1  caliaaaaaaaaaaa  open           8080->80/tcp,192.0.2.1:53->53/udp
bbbbbbbbbbbb  db         other    10.65.0.2  calibbbbbbbbbbb  closed         -
cccccccccccc  -          shop     10.65.0.3  caliccccccccccc  to be removed  -
endpoint bbbbbbbbbbbb is closed: its policy is not known to be in force
endpoint bbbbbbbbbbbb: the container's label x is left out: it has no name
"""


def test_it_shows_what_is_there_and_what_is_wrong(tmp_path: Path) -> None:
    state = DockerState(Files(), str(tmp_path), SILENT)
    state.read()
    state.networks.put(DockerNetwork("net", name="shop"))
    state.addresses.put(HeldAddress("ab", "boot", address="10.65.0.1"))
    ports = ["tcp * 8080 10.65.0.1 80", "udp 192.0.2.1 53 10.65.0.1 53"]
    state.endpoints.put(
        DockerEndpoint("a" * 64, "net", "boot", 1.0, ["10.65.0.1"], sandbox="s", name="web", known=True, ports=ports)
    )
    missing = ["the container's label x is left out: it has no name"]
    state.endpoints.put(
        DockerEndpoint(
            "b" * 64, "other", "boot", 2.0, ["10.65.0.2"],
            sandbox="s", name="db", known=True, waits=True, left_out=missing,
        )
    )  # fmt: skip
    state.endpoints.put(DockerEndpoint("c" * 64, "net", "boot", 3.0, ["10.65.0.3"], owed=True))
    assert render_status("n1", state, answers=True) == EXPECTED
    assert render_status("n1", state, answers=False).startswith("node n1: the driver does not answer\n")


def test_looking_changes_nothing(tmp_path: Path) -> None:
    state = DockerState(Files(), str(tmp_path / "absent"), SILENT)
    state.read(only_look=True)
    assert render_status("n1", state, answers=False).count("\n") == 2 and not (tmp_path / "absent").exists()
    shown = DockerState(Files(), str(tmp_path), SILENT)
    shown.read()
    (tmp_path / "docker" / "networks" / "ab.json").write_text("{")
    shown.read(only_look=True)
    assert "cannot be read" in render_status("n1", shown, answers=True)
