"""The names of upstream's image in ours: runit's programs and directories, and the programs that manifests start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cni_calico.nodeagent.flags import parse_flags
from cni_calico.nodeagent.service_control import SERVICES

ROOT = Path(__file__).parents[3]


@pytest.fixture
def image_tree(tmp_path: Path) -> Path:
    subprocess.run([ROOT / "build/image/tree.sh", tmp_path / "root"], check=True, timeout=20)
    return tmp_path / "root"


def test_every_service_that_sv_knows_has_its_directory(image_tree: Path) -> None:
    assert sorted(path.name for path in (image_tree / "etc/service/enabled").iterdir() if path.is_dir()) == sorted(
        SERVICES
    )


def test_every_service_can_be_run_by_a_runit_of_ones_own(image_tree: Path) -> None:
    """But none is by calico-node run, nor is a BIRD of somebody else's expected: enabled/ has no run scripts."""
    available = image_tree / "etc/service/available"
    assert {path.name for path in available.iterdir()} == set(SERVICES) - {"node-services"}
    assert all((path / "run").stat().st_mode & 0o777 == 0o755 for path in available.iterdir())
    assert not list((image_tree / "etc/service/enabled").glob("*/run"))
    words = [
        path.read_text().split("calico-node ")[1].split() for path in available.glob("*/run") if "bird" not in str(path)
    ]
    assert all(parse_flags(flags)[0] for flags in words)


def test_rc_local_sets_the_node_up(image_tree: Path, tmp_path: Path) -> None:
    node = tmp_path / "calico-node"
    node.write_text('#!/bin/sh\necho "$@"\n')
    node.chmod(0o755)
    script = image_tree / "etc/rc.local"
    script.write_text(script.read_text().replace("/opt/cni/bin/calico-node", str(node)))
    said = subprocess.run([script], capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()
    assert said == ["-hostpath-init -best-effort", "-startup -allocate-tunnel-addrs-run-once -best-effort"]
    assert all(parse_flags(line.split())[0] for line in said)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("usr/sbin/start_runit", ["run"]),
        ("usr/local/bin/sv", ["sv", "status", "a b"]),
        ("usr/local/bin/restart-calico-confd", ["sv", "restart", "confd"]),
    ],
)
def test_runits_programs_are_calico_node(image_tree: Path, tmp_path: Path, program: str, words: list[str]) -> None:
    """Executed, with a calico-node that prints its arguments in the place of the image's."""
    node = tmp_path / "calico-node"
    node.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    node.chmod(0o755)
    runits = tmp_path / "runits-sv"
    runits.write_text('#!/bin/sh\nprintf "%s\\n" "$SVDIR" "$@"\n')
    runits.chmod(0o755)
    places = {
        "/opt/cni/bin/calico-node": node,
        "/usr/bin/sv": runits,
        "/usr/local/bin/sv": image_tree / "usr/local/bin/sv",
    }
    for script in {image_tree / program, image_tree / "usr/local/bin/sv"}:
        assert script.stat().st_mode & 0o777 == 0o755
        text = script.read_text()
        for place, ours in places.items():
            text = text.replace(place, str(ours))
        script.write_text(text)
    given = words[1:] if program.endswith("/sv") else []
    services = tmp_path / "services"
    environ = {"PATH": "/usr/bin:/bin", "SVDIR": str(services)}

    def said() -> list[str]:
        command = [str(image_tree / program), *given]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.splitlines()

    (services / "felix").mkdir(parents=True)
    assert said() == words
    (services / "felix" / "supervise").mkdir()
    os.mkfifo(services / "felix" / "supervise" / "ok")  # as runsv makes it
    assert said() == ([str(services), *words[1:]] if words[0] == "sv" else words)


def test_programs_of_upstreams_manifests_lead_into_the_bundle(image_tree: Path) -> None:
    expected = {
        "install-cni.sh": "/opt/cni/bin/install-cni.sh",
        "opt/cni/bin/install": "calico-install",
        "usr/bin/calico-node": "/opt/cni/bin/calico-node",
        "usr/bin/calicoctl": "/opt/cni/bin/calicoctl",
        "usr/bin/calico-typha": "/opt/cni/bin/calico-typha",
        "usr/bin/kubectl-calico": "calicoctl",
        "usr/bin/kube-controllers": "/opt/cni/bin/calico-kube-controllers",
        "usr/bin/check-status": "/opt/cni/bin/calico-kube-controllers",
        "usr/bin/wrapper": "/opt/cni/bin/calico-kube-controllers",
        "usr/bin/calico": "/opt/cni/bin/calico-kube-controllers",
    }
    assert {name: str((image_tree / name).readlink()) for name in expected} == expected
    assert (image_tree / "status").stat().st_mode & 0o7777 == 0o1777
