"""Docker's drivers under systemd, which holds their sockets and the ports of containers; with the frozen executables.

Rule: dockerd is real, on cgroup v2 as systemd has it.
"""

from __future__ import annotations

import pytest

from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.e2e.systemd.machine import Machine

pytestmark = [pytest.mark.netns, pytest.mark.bundle, pytest.mark.slow, pytest.mark.docker28, pytest.mark.takes(60)]

TREE = LAB_CACHE / "docker-28"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNIT = f"""[Unit]
After=network.target
[Service]
Type=notify
Environment=PATH={PATH}
ExecStart=/usr/local/sbin/dockerd --storage-driver vfs
Delegate=yes
KillMode=process
[Install]
WantedBy=multi-user.target
"""
SERVICE = "calico-docker.service"
LISTEN = ("sh", "-c", "while :; do nc -l -p 80 -e echo answered; done")
SET_UP = f"""set -e
for program in {TREE}/usr/sbin/* {TREE}/usr/bin/*; do ln -s "$program" /usr/local/sbin/; done
mkdir -p /srv/box/bin && cp /usr/bin/busybox /srv/box/bin
for name in sh nc echo sleep; do ln -s busybox /srv/box/bin/$name; done
tar -C /srv/box -cf /srv/image.tar .
"""


def docker(host: Machine, *arguments: str, check: bool = True) -> str:
    return host.run("env", f"PATH={PATH}", "docker", *arguments, check=check).stdout


def shown(host: Machine, name: str) -> str:
    return host.run("systemctl", "show", SERVICE, "-p", name, "--value").stdout.strip()


def sockets(host: Machine) -> set[str]:
    """The driver's sockets, but for those of files."""
    pid = shown(host, "MainPID")
    opened = host.run("sh", "-c", f"readlink /proc/{pid}/fd/*", check=False).stdout.split()
    files = {line.split()[6] for line in host.run("cat", f"/proc/{pid}/net/unix").stdout.splitlines()[1:]}
    return {each for each in opened if each.startswith("socket:") and each[8:-1] not in files}


def is_free(host: Machine, port: int) -> bool:
    script = f"import socket; socket.socket().bind(('', {port}))"
    return host.run("/usr/bin/python3", "-c", script, check=False).returncode == 0


def answers(host: Machine) -> bool:
    script = "import socket; s = socket.create_connection(('192.0.2.10', 8080), 2); print(s.recv(100))"
    return "answered" in host.outside.run("/usr/bin/python3", "-c", script, check=False).stdout


def test_sockets_and_ports_are_kept(lab_machine: Machine) -> None:
    host = lab_machine
    host.run("sh", "-c", SET_UP)
    host.write("/etc/systemd/system/docker.service", UNIT)
    host.run("systemctl", "daemon-reload")
    host.calicoctl("node", "init", "--datastore", "local", "--cidr", "10.65.0.0/16")
    host.run("systemctl", "enable", "--now", "docker")
    docker(host, "import", "/srv/image.tar", "box")
    docker(host, "network", "create", "--driver", "calico", "--ipam-driver", "calico-ipam", "web")
    docker(
        host, "run", "-d", "--name", "web", "--network", "web", "--restart", "always", "-p", "8080:80", "box", *LISTEN
    )
    until(lambda: answers(host), "from outside")
    assert shown(host, "NFileDescriptorStore") == "1"
    before, pid = sockets(host), shown(host, "MainPID")
    host.run("systemctl", "kill", "-s", "KILL", SERVICE)
    until(lambda: shown(host, "MainPID") not in ("0", pid) and shown(host, "ActiveState") == "active", "again")
    assert len(sockets(host) & before) == 1, "the port's is the same"
    assert shown(host, "NFileDescriptorStore") == "1" and answers(host) and not is_free(host, 8080)
    docker(host, "run", "-d", "--name", "other", "--network", "web", "-p", "8081:80", "box", *LISTEN)
    assert shown(host, "NFileDescriptorStore") == "2"
    docker(host, "rm", "-f", "other")
    assert shown(host, "NFileDescriptorStore") == "1" and is_free(host, 8081)

    host.run("systemctl", "stop", SERVICE)
    assert docker(host, "run", "--rm", "--network", "web", "box", "echo", "started").strip() == "started"
    assert shown(host, "ActiveState") == "active", "the call has started it"
    assert answers(host)

    host.run("sync")
    host.end()
    host.start()
    until(lambda: answers(host), "after a reboot", 180, pause_s=0.3)
    host.until_up()
    records = host.calicoctl("get", "workloadendpoints", "-n", "libnetwork", "-o", "name").stdout.split()
    assert len(records) == 1, "what the boot before has left is gone"
    assert shown(host, "NFileDescriptorStore") == "1"
    docker(host, "rm", "-f", "web")
    assert shown(host, "NFileDescriptorStore") == "0" and is_free(host, 8080)
    assert not host.calicoctl("get", "workloadendpoints", "-n", "libnetwork", "-o", "name").stdout
