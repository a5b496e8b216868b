"""Docker's containers in Calico's networks: real dockerd, our driver, the policy engine."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cni_calico.daemon.doorbell import hang_bell
from cni_calico.directories import FORWARD_BELL
from tests.deadlines import until
from tests.netns.docker.machine import NAMESPACE, Machine
from tests.netns.policing.lab import socket_in

pytestmark = [pytest.mark.netns, pytest.mark.docker]

LISTEN = ("sh", "-c", "while :; do nc -l -p 80 -e echo answered; done")
ETH_P_ALL = 0x0003


WORDS = {"jailed": 1001, "free": 1002}  # the ports to which they knock


def talker(word: str) -> tuple[str, ...]:
    """A program that knocks at the world as soon as it starts, again and again."""
    return ("sh", "-c", f"while :; do nc -w 1 192.0.2.1 {WORDS[word]}; done")


def answers(box: Machine, client: str, address: str) -> bool:
    done = box.docker("exec", client, "nc", "-w", "2", address, "80", check=False)
    return "answered" in done.stdout


def deny(box: Machine, container: str, direction: str) -> None:
    rules = {"types": [direction], direction.lower(): [{"action": "Deny"}]}
    box.lab.put(
        "GlobalNetworkPolicy", "deny", {"selector": f"cni-calico.io/container == '{container}'", "order": 1, **rules}
    )


def start_agent(box: Machine) -> None:
    box.lab.start()
    box.lab.until_in_force()


def waiting(box: Machine) -> set[str]:
    """The interfaces that are closed until their policy is in force."""
    done = box.lab.host.run("nft", "-j", "list", "table", "inet", "calico-waiting", check=False)
    if done.returncode:
        return set()
    maps = [item["map"] for item in json.loads(done.stdout)["nftables"] if "map" in item]
    return {element[0] for found in maps for element in found.get("elem", ())}


class Capture:
    """The ports to which something goes out of the host."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._ports: set[int] = set()

    def has(self, word: str) -> bool:
        while True:
            try:
                data = self._socket.recv(2048)
            except BlockingIOError:
                return WORDS[word] in self._ports
            self._ports.add(int.from_bytes(data[36:38], "big"))  # of TCP, after Ethernet's and IP's heads


@contextmanager
def capture(box: Machine) -> Iterator[Capture]:
    with socket_in(box.lab.host, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as opened:
        opened.bind(("uplink", ETH_P_ALL))
        opened.setblocking(False)
        yield Capture(opened)


def test_a_container_gets_an_address_a_record_and_a_name_and_leaves_nothing(box: Machine) -> None:
    """On one host, without anything of calico-node, and without a default route."""
    box.lab.host.run("ip", "route", "delete", "default", check=False)
    bell = hang_bell(str(box.root / "run" / FORWARD_BELL))
    assert bell is not None
    box.network("web")
    assert bell.recv(1), "the agent is told that Docker has begun"
    labels = ("--label", "app=shop", "--label", "com.docker.compose.project=shop", "--hostname", "shop")
    address = box.run("server", "web", *labels, command=LISTEN)
    box.run("client", "web")
    assert "169.254.1.0/24" in {route["dst"] for route in box.lab.host.ip("route", "show", "dev", "lo")}
    assert answers(box, "client", address) and answers(box, "client", "server"), "and by Docker's DNS"
    record, shown = box.records()["server"], box.inspect("server")
    assert record["spec"]["ipNetworks"] == [f"{address}/32"] and record["spec"]["profiles"] == ["web"]
    assert record["spec"]["containerID"] == shown["Id"]
    assert record["spec"]["mac"] == shown["NetworkSettings"]["Networks"]["web"]["MacAddress"]
    endpoint = record["spec"]["endpoint"]
    assert record["metadata"]["name"] == f"n1-libnetwork-libnetwork-{endpoint}"
    assert record["metadata"]["labels"] == {
        "cni-calico.io/container": "server",
        "cni-calico.io/image": "box",
        "cni-calico.io/network": "web",
        "cni-calico.io/compose-project": "shop",
        "org.projectcalico.label.app": "shop",
        "org.projectcalico.label.com.docker.compose.project": "shop",
        f"projectcalico.org/{'namespace'}": NAMESPACE,
        "projectcalico.org/orchestrator": NAMESPACE,
    }
    box.docker("rename", "server", "renamed")
    until(lambda: "renamed" in box.records(), "the new name")
    box.docker("restart", "-t", "0", "renamed")
    assert list(box.records()) in (["renamed", "client"], ["client", "renamed"])
    until(lambda: len(box.handles()) == 2, "the former one is released")
    box.docker("rm", "-f", "renamed", "client")
    assert not box.veths(), "when Docker says so, the interface is gone"
    until(box.is_clean, "and everything else")
    assert len(box.files("networks")) == 1
    box.docker("network", "rm", "web")
    assert not box.files("networks")
    assert not waiting(box), "no agent has ever run: nothing waits"


def links(box: Machine, name: str) -> dict[str, int]:
    """The MTU of each interface in a container, and of the host's ends."""
    pid = str(box.inspect(name)["State"]["Pid"])
    inside = json.loads(box.in_machine("nsenter", "-t", pid, "-n", "ip", "-j", "link", "show").stdout)
    return {link["ifname"]: link["mtu"] for link in [*inside, *box.lab.host.ip("link", "show")]}


def test_options_and_the_settings_of_upstream_s_plugin(box: Machine) -> None:
    box.end("driver")
    names = {"IFPREFIX": "cali", "LABEL_ENDPOINTS": "false", "CREATE_PROFILES": "false", "VETH_MTU": "1380"}
    box.start_driver(**{f"CALICO_LIBNETWORK_{name}": value for name, value in names.items()})
    box.network("web")
    box.network("small", "-o", "mtu=1400")
    box.run("one", "web", "--label", "app=shop")
    option = "name=small,driver-opt=org.projectcalico.label.tier=front"
    box.docker("run", "-d", "--init=false", "--name", "two", "--network", option, "box", "sleep", "1000")
    found = box.records()
    for name, mtu in (("one", 1380), ("two", 1400)):
        shown = links(box, name)
        assert shown["cali0"] == shown[found[name]["spec"]["interfaceName"]] == mtu, shown
    assert "org.projectcalico.label.app" not in found["one"]["metadata"]["labels"]
    assert found["two"]["metadata"]["labels"]["org.projectcalico.label.tier"] == "front", "one that is asked for"
    assert not box.lab.documents("Profile")
    box.end("driver")
    box.start_driver()


def test_a_container_starts_when_its_policy_is_in_force(box: Machine) -> None:
    deny(box, "server", "Ingress")
    start_agent(box)
    box.network("web")
    address = box.run("server", "web", command=LISTEN)
    box.run("client", "web")
    files = {path.name.rpartition(" ")[2] for path in (box.root / "endpoint-status").iterdir()}
    assert files == {record["spec"]["endpoint"] for record in box.records().values()}
    assert not waiting(box)
    assert not answers(box, "client", address)
    box.lab.remove("GlobalNetworkPolicy", "deny")
    until(lambda: answers(box, "client", address), "the policy is gone")
    before = box.address("client", "web")
    box.docker("restart", "-t", "0", "client")
    kept = box.address("client", "web") == before
    assert kept or box.release != "29", "since 29 Docker says whose address it asks for"


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_container_of_two_networks_is_reached_in_both(box: Machine, full: bool) -> None:
    """It answers by the one that has the default route, with the other one's address, where sources are checked."""
    box.lab.put("IPPool", "pool6", {"cidr": "fd00:65::/112", "blockSize": 122, "nodeSelector": "all()"})
    deny(box, "jailed", "Egress")
    start_agent(box)
    # a pool of every address overlaps those of the host's nameservers: dockerd might ask for another one without an end
    (box.root / "resolv.conf").write_text("nameserver 2001:db8::53\nnameserver 192.0.2.53\n")
    box.in_machine("mount", "--bind", f"{box.root}/resolv.conf", "/etc/resolv.conf")
    for name in ("one", "two"):
        box.network(name, "--ipv6")
    box.in_machine("umount", "/etc/resolv.conf")
    box.run("server", "one", command=LISTEN)
    box.docker("network", "connect", "two", "server")
    both = box.inspect("server")["NetworkSettings"]["Networks"]
    clients = ("one", "two") if full else ("two",)
    for client in clients:
        box.run(client, client)
        for network in both:
            for key in ("IPAddress", "GlobalIPv6Address") if full else ("IPAddress",):
                assert answers(box, client, both[network][key]), (client, network, key)
    assert len(box.files("addresses")) == 2 * len(box.files("endpoints")) == 2 * (2 + len(clients))
    if not full:
        return
    box.run("jailed", "two")
    assert not answers(box, "jailed", both["two"]["IPAddress"])
    box.docker("network", "disconnect", "one", "server")
    assert answers(box, "two", both["two"]["IPAddress"]), "the default route is the other network's now"
    box.docker("network", "connect", "one", "server")
    again = box.inspect("server")["NetworkSettings"]["Networks"]
    assert answers(box, "one", again["one"]["IPAddress"]) and answers(box, "two", again["two"]["IPAddress"])


def test_it_starts_closed_without_an_agent_and_opens_when_there_is_one(box: Machine) -> None:
    """The driver may end meanwhile."""
    (box.root / "state" / "nodename").write_text("n1")
    box.network("web")
    address = box.run("server", "web", command=LISTEN)
    box.run("client", "web")
    assert "starts closed" in box.log()
    assert waiting(box) == set(box.veths())
    assert not answers(box, "client", address)
    box.lab.host.run("nft", "flush", "ruleset")
    until(lambda: waiting(box) == set(box.veths()), "whatever other programs do")
    assert not answers(box, "client", address)
    box.end("driver", signal.SIGKILL)
    box.start_driver()
    assert waiting(box) == set(box.veths())
    box.lab.start()
    until(lambda: not waiting(box), "the agent has decided that there is no policy to enforce")
    until(lambda: answers(box, "client", address), "open")


def test_nothing_passes_before_the_policy_after_a_reboot(box: Machine) -> None:
    """dockerd starts containers by itself, and answers nobody until they are up; calico-node comes last."""
    deny(box, "jailed", "Egress")
    start_agent(box)
    box.network("web")
    for name in ("jailed", "free"):
        box.run(name, "web", "--restart", "always", command=talker(name))
    before = {name: record["spec"]["ipNetworks"] for name, record in box.records().items()}
    (box.root / "state" / "nodename").write_text("n1")
    with capture(box) as seen:
        until(lambda: seen.has("free"), "what is allowed goes out")
        assert not seen.has("jailed")
    box.power_off()
    lost = next((box.root / "state" / "docker" / "addresses").iterdir())
    lost.unlink()  # what was written last is not on the disk
    with capture(box) as seen:
        box.power_on()
        box.start_driver(activated=True)
        box.start_docker()
        until(lambda: set(box.records()) == {"jailed", "free"}, "both containers have records again")
        assert waiting(box) == set(box.veths()) and len(box.veths()) == 2
        assert not seen.has("free") and not seen.has("jailed")
        start_agent(box)
        until(lambda: not waiting(box), "both are open, each with its policy")
        until(lambda: seen.has("free"), "what is allowed goes out")
        assert not seen.has("jailed")
    assert set(before) == set(box.records())
    until(lambda: len(box.handles()) == len(box.files("addresses")) == 2, "those of the former boot are released")


def test_a_killed_dockerd_leaves_nothing(box: Machine) -> None:
    """It tells no more than the addresses that its dead containers had."""
    box.network("web")
    box.run("server", "web", "--restart", "always", command=LISTEN)
    box.run("gone", "web")
    box.kill_docker()
    box.start_docker()
    until(lambda: set(box.records()) == {"server"} and len(box.handles()) == 1, "one is left")
    assert box.records()["server"]["metadata"]["labels"]["cni-calico.io/image"] == "box"
    until(lambda: len(box.veths()) == 1, "its interface")


@pytest.mark.parametrize(
    "fault", ["netlink.link-create:after:1:kill", pytest.param("file.rename:after:1:kill", marks=pytest.mark.slow)]
)
def test_a_driver_that_dies_while_a_container_starts(box: Machine, fault: str) -> None:
    """dockerd repeats the request without its body. What is left is gone, and the next container starts."""
    box.network("web")
    box.run("before", "web")
    box.end("driver")
    box.start_driver(CALICO_FAULT=fault)
    begun = box.begin("run", "--name", "one", "--network", "web", "box", "true")
    until(lambda: not box.is_running("driver"), "it dies")
    box.make_well()
    said, _ = begun.communicate(timeout=60)
    assert begun.returncode and "its body is empty" in said
    until(lambda: len(box.files("addresses")) == len(box.files("endpoints")) == 1, "nothing of it is left")
    assert len(box.records()) == len(box.handles()) == len(box.veths()) == 1
    box.run("two", "web")
