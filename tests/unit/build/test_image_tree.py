"""The names of upstream's image in ours: runit's programs and directories, and the programs that manifests start."""

from __future__ import annotations

import fcntl
import os
import shutil
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


def run_rc_local(image_tree: Path, tmp_path: Path, environ: dict[str, str]) -> list[str]:
    """What it has calico-node do."""
    node = tmp_path / "calico-node"
    node.write_text('#!/bin/sh\necho "$@"\n')
    node.chmod(0o755)
    script = tmp_path / "rc.local"
    text = (image_tree / "etc/rc.local").read_text()
    for place, ours in (("/opt/cni/bin/calico-node", node), ("/etc/service", image_tree / "etc/service")):
        text = text.replace(place, str(ours))
    script.write_text(text)
    environ = {"PATH": "/usr/bin:/bin", **environ}
    done = subprocess.run(["sh", script], env=environ, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.splitlines()


def rc_local(image_tree: Path, tmp_path: Path, **environ: str) -> tuple[list[str], set[str]]:
    """What it has calico-node do, and which services it enables."""
    said = run_rc_local(image_tree, tmp_path, environ)
    enabled = Path(environ.get("SVDIR", image_tree / "etc/service/enabled"))
    for name in enabled.iterdir():
        available = image_tree / "etc/service/available" / name.name / "run"
        assert (name / "run").read_bytes() == available.read_bytes() and os.access(name / "run", os.X_OK)
    return said, {path.name for path in enabled.iterdir()}


def test_rc_local_sets_the_node_up_and_enables_its_services(image_tree: Path, tmp_path: Path) -> None:
    said, enabled = rc_local(image_tree, tmp_path)
    assert said == ["-hostpath-init -best-effort", "-startup -allocate-tunnel-addrs-run-once -best-effort"]
    assert all(parse_flags(line.split())[0] for line in said)
    assert enabled == set(SERVICES) - {"node-services"}


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({"CALICO_NETWORKING_BACKEND": "vxlan"}, {"confd", "bird", "bird6"}),
        ({"CALICO_NETWORKING_BACKEND": " None "}, {"confd", "bird", "bird6"}),
        ({"CALICO_NETWORKING": "false"}, {"confd", "bird", "bird6"}),
        ({"CALICO_DISABLE_FELIX": "True"}, {"felix"}),
        ({"CALICO_MANAGE_CNI": "false"}, {"monitor-token"}),
    ],
)
def test_rc_local_goes_by_the_environment(
    image_tree: Path, tmp_path: Path, environ: dict[str, str], missing: set[str]
) -> None:
    """Also when it is run again with another one."""
    every = set(SERVICES) - {"node-services"}
    environ = {"SVDIR": str(tmp_path / "service"), **environ}
    assert rc_local(image_tree, tmp_path, SVDIR=environ["SVDIR"])[1] == every
    assert rc_local(image_tree, tmp_path, **environ)[1] == every - missing


def supervise(service: Path) -> Path:
    """What runsv has made of a service that runit ran."""
    left = service / "supervise"
    left.mkdir(parents=True, mode=0o700)
    for fifo in ("ok", "control"):
        os.mkfifo(left / fifo)
    for file in ("lock", "pid", "stat", "status"):
        (left / file).touch()
    return left


def test_a_service_that_runit_ran_is_gone_when_it_is_not_wanted(image_tree: Path, tmp_path: Path) -> None:
    services = tmp_path / "service"
    rc_local(image_tree, tmp_path, SVDIR=str(services))
    for name in SERVICES:
        if name != "node-services":
            supervise(services / name)
    expected = set(SERVICES) - {"node-services", "felix"}
    assert rc_local(image_tree, tmp_path, SVDIR=str(services), CALICO_DISABLE_FELIX="1")[1] == expected
    assert all((services / name / "supervise" / "ok").is_fifo() for name in expected)


def test_what_is_not_runsvs_or_in_use_stays(image_tree: Path, tmp_path: Path) -> None:
    """A service that still runs, a file of somebody else, a link that leads elsewhere."""
    services = tmp_path / "service"
    elsewhere = supervise(tmp_path / "elsewhere")
    (services / "confd").mkdir(parents=True)
    (services / "confd/supervise").symlink_to(elsewhere)
    (services / "bird6").symlink_to(tmp_path / "elsewhere")
    running, kept = supervise(services / "felix"), supervise(services / "bird")
    (kept / "note").touch()
    environ = {"SVDIR": str(services), "CALICO_DISABLE_FELIX": "1", "CALICO_NETWORKING_BACKEND": "none"}
    with open(running / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as runsv does
        run_rc_local(image_tree, tmp_path, environ)
    assert len(list(running.iterdir())) == 6 and len(list(elsewhere.iterdir())) == 6
    assert [path.name for path in kept.iterdir()] == ["note"]
    assert (services / "confd/supervise").is_symlink() and (services / "bird6").is_symlink()
    (kept / "note").unlink()
    (services / "bird6").unlink()
    shutil.rmtree(services / "confd")
    left = rc_local(image_tree, tmp_path, **environ)[1]
    assert left == set(SERVICES) - {"node-services", "felix", "bird", "bird6", "confd"}


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
