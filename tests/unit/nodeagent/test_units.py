"""The systemd unit and its environment: what they name exists, and nothing in them undoes what calico-node does."""

import configparser
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

import pytest

from cni_calico.daemon.notify import tell_systemd
from cni_calico.daemon.settings_table import settings_of
from cni_calico.daemon.supervisor import STOP_S
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.settings import DATASTORE_VARIABLES, NodeSettings, parse_settings
from cni_calico.nodeagent.flags import parse_flags
from cni_calico.nodeagent.status.unit import DEADLINE_S
from cni_calico.plugin.call.client import call_server
from cni_calico.server.run import DRAIN_S

NAMES = ("calico-node", "calico-boot-table", "calico-cni", "calico-kube-controllers", "calico-docker")
UNITS = pathlib.Path(__file__).parents[3] / "install" / "systemd"


def unit(name="calico-node", kind="service"):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNITS / f"{name}.{kind}")
    return parser


def environment(*, commented):
    """name -> value of the lines that are in force, or also of those that are offered."""
    pattern = re.compile(r"^#?([A-Z][A-Z0-9_]+)=(.*)$" if commented else r"^([A-Z][A-Z0-9_]+)=(.*)$")
    lines = (UNITS / "calico-node.env").read_text().splitlines()
    return dict(match.groups() for line in lines if (match := pattern.match(line)))


def test_the_service():
    service = unit()["Service"]
    executable, *arguments = service["ExecStart"].split()
    assert executable.endswith("/calico-node") and parse_flags(arguments) == ({"run"}, {})
    assert service["KillMode"] == "mixed"  # the supervisor tells its children
    assert float(service["TimeoutStopSec"]) > STOP_S
    assert "RuntimeDirectory" not in service  # it would take the CNI server's socket away
    assert service["Type"] == "notify" and float(service["TimeoutStartSec"]) > 2 * DEADLINE_S
    assert {"podman-restart.service", "docker.service", "kubelet.service"} == set(unit()["Unit"]["Before"].split())
    assert service["EnvironmentFile"].endswith("/calico-node.env")


def test_the_boot_table_is_loaded_before_any_network():
    """With calico-node, and after what flushes the packet filter; nothing that has containers starts before it."""
    both = unit("calico-boot-table"), unit()
    executable, *arguments = both[0]["Service"]["ExecStart"].split()
    assert executable == both[1]["Service"]["ExecStart"].split()[0]
    assert parse_flags(arguments) == ({"boot-table"}, {})
    assert both[0]["Service"]["EnvironmentFile"] == both[1]["Service"]["EnvironmentFile"], (
        "the prefixes are the agent's"
    )
    assert both[0]["Unit"]["Wants"] == "network-pre.target" and "nftables.service" in both[0]["Unit"]["After"]
    assert both[0]["Unit"]["DefaultDependencies"] == "no"
    text = (UNITS / "calico-boot-table.service").read_text()
    before = " ".join(re.findall("^Before=(.*)$", text, re.M)).split()
    assert {"network-pre.target", "calico-node.service", "podman-restart.service", "docker.service"} <= set(before)
    assert "calico-boot-table.service" in both[1]["Unit"]["After"].split()
    assert both[1]["Install"]["Also"] == "calico-boot-table.service", "enabled and disabled together"


def test_every_variable_is_known_and_valid():
    known = {item.name for item in settings_of(NodeSettings)} | {row[0] for row in DATASTORE_VARIABLES}
    felix = {f"FELIX_{item.name.upper()}" for item in settings_of(FelixSettings)}
    offered = environment(commented=True)
    assert set(offered) <= known | felix
    settings = parse_settings(offered)
    assert settings.v4_vxlan == "Always"
    assert parse_felix(offered).warnings == ()


def test_one_host_by_itself_is_what_is_in_force():
    settings = parse_settings(environment(commented=False))
    assert (settings.backend, settings.v4_nat, settings.v6_cidr) == ("none", True, "none")
    assert environment(commented=False)["DATASTORE_TYPE"] == "local"


def test_the_service_of_the_cni_server_alone():
    service = unit("calico-cni")["Service"]
    executable, *arguments = service["ExecStart"].split()
    assert executable == unit()["Service"]["ExecStart"].split()[0]
    assert parse_flags(arguments) == ({"cni-server"}, {})
    assert service["Type"] == "notify" and float(service["TimeoutStopSec"]) > DRAIN_S
    assert "RuntimeDirectory" not in service
    assert unit("calico-cni")["Unit"]["Conflicts"] == "calico-node.service", "one socket, one server"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_controllers_service():
    from cni_calico.controllers.main import parse_flags as parse_controllers_flags

    service = unit("calico-kube-controllers")["Service"]
    executable, *arguments = service["ExecStart"].split()
    assert executable == "/opt/cni/bin/calico-kube-controllers"
    flags = parse_controllers_flags(arguments, {"version"}, {"status-file"})
    # the directory is systemd's to make, for a system that may not be written otherwise
    assert flags == {"status-file": f"/run/{service['RuntimeDirectory']}/status.json"}
    assert service["ProtectSystem"] == "strict"
    assert service["EnvironmentFile"] == "/etc/calico/calico-kube-controllers.env"


def test_docker_s_drivers_are_there_before_docker_and_go_after_it():
    from cni_calico.docker.run import IPAM_SOCKET, NETWORK_SOCKET
    from cni_calico.docker.settings import PLUGIN_DIR, parse_docker_settings

    text = (UNITS / "calico-docker.socket").read_text()
    listened = re.findall("(?m)^ListenStream=(.*)$", text)
    assert listened == [f"{PLUGIN_DIR}/{name}.sock" for name in (NETWORK_SOCKET, IPAM_SOCKET)]
    socket_unit, service = unit("calico-docker", "socket"), unit("calico-docker")
    assert socket_unit["Socket"]["SocketMode"] == "0600" and socket_unit["Socket"]["DirectoryMode"] == "0700"
    assert socket_unit["Unit"]["Before"] == service["Unit"]["Before"] == "docker.service"
    assert service["Service"]["Type"] == "notify" and service["Service"]["Restart"] == "always"
    lines = (UNITS / "calico-docker.env").read_text().splitlines()
    offered = dict(line.lstrip("#").split("=", 1) for line in lines if re.match(r"#[A-Z_]+=", line))
    settings = parse_docker_settings(offered)
    assert (settings.policy_wait_s, settings.veth_mtu, settings.label_endpoints) == (10.0, 1400, False)


def test_the_controllers_environment_is_one_they_read():
    from cni_calico.controllers.settings import parse_environment as parse_controllers

    lines = (UNITS / "calico-kube-controllers.env").read_text().splitlines()
    environ = dict(line.lstrip("#").split("=", 1) for line in lines if re.match(r"#?[A-Z_]+=", line))
    assert parse_controllers(environ).enabled == (
        "policy",
        "namespace",
        "serviceaccount",
        "workloadendpoint",
        "node",
        "loadbalancer",
    )
    own = {"ENABLED_CONTROLLERS", "KUBECONFIG"}
    assert environ.keys() - own <= {row[0] for row in DATASTORE_VARIABLES}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_understands_them(name, tmp_path):
    executable = tmp_path / "program"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    text = re.sub("/opt/cni/bin/[a-z-]+", str(executable), (UNITS / f"{name}.service").read_text())
    for each in NAMES:  # some name each other
        (tmp_path / f"{each}.service").write_text(text)
    shutil.copy(UNITS / "calico-docker.socket", tmp_path)
    argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / f"{name}.service")]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"})
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_its_command_line_starts_a_server_and_says_when(tmp_path):
    """What the service runs, from the module that the executable is made of."""
    _, *arguments = unit("calico-cni")["Service"]["ExecStart"].split()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        environ = {**os.environ, "CALICO_RUN_DIR": str(tmp_path), "NOTIFY_SOCKET": str(tmp_path / "notify")}
        argv = [sys.executable, "-m", "cni_calico.nodeagent.main", *arguments]
        process = subprocess.Popen(argv, env=environ, stderr=subprocess.DEVNULL)
        try:
            assert systemd.recv(100) == b"READY=1"
            answer = call_server(str(tmp_path / "cni.sock"), "metrics", {}, b"")
            assert answer is not None and b"calico_cni_in_flight 0" in answer[1]
            process.terminate()
            assert systemd.recv(100) == b"STOPPING=1"
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


def test_nobody_is_told_where_there_is_no_systemd(tmp_path):
    assert not tell_systemd("READY=1", {})
    assert not tell_systemd("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0cct-{os.getpid()}-notify")
        assert tell_systemd("READY=1", {"NOTIFY_SOCKET": f"@cct-{os.getpid()}-notify"})
        assert systemd.recv(100) == b"READY=1"
