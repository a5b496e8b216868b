"""``calicoctl node init`` and ``node uninstall`` on a host of systemd's: from nothing to a network, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.contract.etcd_process import Cluster, Member
from tests.e2e.systemd.machine import Machine

pytestmark = [pytest.mark.netns, pytest.mark.bundle, pytest.mark.takes(60)]

PLACES = (
    "/etc/calico /etc/cni /etc/systemd /usr/local/bin /usr/local/libexec /var/lib/calico /var/log/calico /run/calico"
)
IN_KERNEL = "nft list ruleset; iptables-legacy-save; ip -br link; ip route show proto bird; ip route show proto 80"


def files_of(host: Machine) -> dict[str, str]:
    """What is where init and calico-node write, with links and contents; podman writes cni.lock when it is asked."""
    script = (
        f'for p in $(find {PLACES} ! -type d ! -name "*.lock" ! -name "*.sock" 2>/dev/null); do '
        'if [ -L "$p" ]; then echo "$p -> $(readlink "$p")"; else echo "$p $(md5sum <"$p")"; fi; done'
    )
    lines = host.run("sh", "-c", script).stdout.splitlines()
    return dict(line.split(" ", 1) for line in lines)


def kernel_of(host: Machine) -> str:
    return host.run("sh", "-c", IN_KERNEL, check=False).stdout


def unit(host: Machine, name: str) -> dict[str, str]:
    asked = "ActiveState,SubState,UnitFileState,Before,StatusText"
    said = host.run("systemctl", "show", name, "-p", asked).stdout
    return dict(line.split("=", 1) for line in said.splitlines())


def test_from_nothing_to_a_network_and_back(lab_machine: Machine) -> None:
    host = lab_machine
    before, kernel = files_of(host), kernel_of(host)
    shown = host.calicoctl("node", "init", "--datastore", "local", "--cidr", "10.65.0.0/16", "--dry-run").stdout
    assert "write /etc/calico/calico-node.env (mode 0600)\n    # Written by" in shown
    assert "write /etc/cni/net.d/10-calico.conflist" in shown and shown.endswith("Nothing was changed: --dry-run.\n")
    assert files_of(host) == before and kernel_of(host) == kernel

    said = host.calicoctl("node", "init", "--datastore", "local", "--cidr", "10.65.0.0/16").stdout
    assert "The network works.\n" in said and said.endswith("This host is set up.\n")
    node = unit(host, "calico-node")
    assert (node["ActiveState"], node["SubState"], node["UnitFileState"]) == ("active", "running", "enabled")
    assert {"containerd.service", "podman-restart.service", "docker.service"} <= set(node["Before"].split())
    assert node["StatusText"].startswith("no policy is enforced on this node: there is no policy")
    assert unit(host, "calico-boot-table")["UnitFileState"] == "enabled"
    assert host.run("calicoctl", "get", "ippool", "-o", "jsonpath={.items[*].spec.cidr}").stdout == "10.65.0.0/16"

    written = files_of(host)
    assert set(written) > set(before)
    started = host.run("systemctl", "show", "calico-node", "-p", "MainPID").stdout
    again = host.calicoctl("node", "init", "--datastore", "local", "--cidr", "10.65.0.0/16").stdout
    assert "wrote" not in again and "The network works.\n" in again
    assert host.run("systemctl", "show", "calico-node", "-p", "MainPID").stdout == started, "it was not restarted"
    other = host.calicoctl("node", "init", "--datastore", "local", "--cidr", "10.65.0.0/16", "--name", "web1").stdout
    assert "wrote   /etc/calico/calico-node.env\n" in other and "units" not in other
    assert host.run("systemctl", "show", "calico-node", "-p", "MainPID").stdout != started
    assert "web1" in host.run("calicoctl", "get", "nodes").stdout

    host.run("ln", "-s", "/opt/cni/bin/calico-netavark", "/usr/local/bin/theirs")  # nobody's; it is left alone
    host.run("mkdir", "-p", "/usr/local/libexec/netavark")
    host.run(
        "ln", "-s", "/opt/cni/bin/calico-netavark", "/usr/local/libexec/netavark/calico"
    )  # by hand, as a page said
    gone = host.calicoctl("node", "uninstall").stdout
    assert gone.endswith("This host has nothing of Calico any more but the executables in /opt/cni/bin.\n")
    host.run("rm", "/usr/local/bin/theirs")
    assert files_of(host) == before and kernel_of(host) == kernel
    assert host.run("systemctl", "status", "calico-node", check=False).returncode == 4, "there is no such unit"
    assert host.calicoctl("node", "uninstall").stdout.endswith("/opt/cni/bin.\n"), "again"


def test_what_somebody_else_wrote_is_not_lost(lab_machine: Machine) -> None:
    host = lab_machine
    host.write("/etc/calico/calico-node.env", "DATASTORE_TYPE=etcdv3\nETCD_ENDPOINTS=http://192.0.2.7:2379\n")
    before = files_of(host)
    refused = host.calicoctl("node", "init", "--datastore", "local", check=False)
    assert refused.returncode == 1
    assert "somebody else wrote /etc/calico/calico-node.env" in refused.stderr and "--force keeps it" in refused.stderr
    assert files_of(host) == before
    host.calicoctl("node", "init", "--datastore", "local", "--force")
    assert "192.0.2.7" in host.run("cat", "/etc/calico/calico-node.env.before-init").stdout
    attached(host, "ADD")
    refused = host.calicoctl("node", "uninstall", check=False)
    assert refused.returncode == 1 and "1 containers still have an interface of it (calic1)" in refused.stderr
    attached(host, "DEL")
    host.calicoctl("node", "uninstall")
    assert files_of(host) == before


def attached(host: Machine, command: str) -> None:
    """A container of a runtime's, with the network configuration that was written."""
    script = f"""set -e
[ -e /run/netns/c1 ] || ip netns add c1
python3 -c 'import json; c = json.load(open("/etc/cni/net.d/10-calico.conflist"))
print(json.dumps({{**c["plugins"][0], "name": c["name"], "cniVersion": c["cniVersion"]}}))' |
  CNI_COMMAND={command} CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/c1 CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin \
  /opt/cni/bin/calico
"""
    host.run("sh", "-c", script)


MISTAKES: list[tuple[list[str], str]] = [
    (["--datastore", "local", "--endpoints", "http://192.0.2.7:2379"], "--endpoints is given with --datastore local"),
    (["--datastore", "etcd"], "--datastore etcd needs --endpoints"),
    (["--datastore", "etcd", "--endpoints", "192.0.2.7:2379"], "which is no URL of etcd"),
    (["--datastore", "etcd", "--endpoints", "https://192.0.2.7:2379", "--ca", "/no/file"], "there is no file /no/file"),
    (
        ["--datastore", "etcd", "--endpoints", "https://192.0.2.7:2379", "--cert", "/c"],
        "--cert and --key belong together",
    ),
    (["--datastore", "local", "--peer", "192.0.2.1@64500"], "--peer needs --as"),
]


def test_mistakes_change_nothing(lab_machine: Machine) -> None:
    before = files_of(lab_machine)
    for words, why in MISTAKES:
        done = lab_machine.calicoctl("node", "init", *words, check=False)
        assert done.returncode == 1 and why in done.stderr, (words, done.stderr)
    assert files_of(lab_machine) == before


@pytest.mark.etcd
def test_one_of_several_hosts_with_a_router(lab_machine: Machine, tmp_path: Path) -> None:
    host = lab_machine
    before = files_of(host)
    url, prefix = "http://192.0.2.1:2379", ("nsenter", f"--net={host.outside.path}")
    member = Member("etcd", url, "http://127.0.0.1:2380", tmp_path, prefix=prefix)
    with Cluster((member,), tmp_path):
        asked = ("--datastore", "etcd", "--endpoints", url, "--as", "64512", "--cidr", "10.65.0.0/16", "--name", "web1")
        said = host.calicoctl("node", "init", *asked, "--peer", "192.0.2.1@64500").stdout
        assert "The network works.\n" in said
        peer = json.loads(host.run("calicoctl", "get", "bgppeers", "-o", "json").stdout)["items"][0]
        assert peer["spec"] == {"node": "web1", "peerIP": "192.0.2.1", "asNumber": 64500}
        assert "192.0.2.1" in host.run("calicoctl", "node", "status").stdout
        said = host.calicoctl("node", "init", *asked, "--peer", "192.0.2.2@64500").stdout
        assert "wrote" not in said
        names = host.run("calicoctl", "get", "bgppeers", "-o", "name").stdout.split()
        assert names == ["bgppeer/init.web1.192.0.2.2"], "the one before is gone"
        host.calicoctl("node", "uninstall")
        assert files_of(host) == before
        environ = ("env", "DATASTORE_TYPE=etcdv3", f"ETCD_ENDPOINTS={url}", "/opt/cni/bin/calicoctl")
        for kind in ("nodes", "bgppeers"):
            assert host.run(*environ, "get", kind, "-o", "name").stdout == "", kind
