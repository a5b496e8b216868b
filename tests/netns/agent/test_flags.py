"""Every flag that starts something, alone, on a node that is set up: it does its thing, and a SIGTERM ends it at once.

Rule: the two tables together name every such flag (a test compares them with the list of the flags themselves); what a
flag does is seen in the kernel, in files or in the datastore, never in its log.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.resources import Metadata, Resource
from cni_calico.model.timestamps import parse_rfc3339
from cni_calico.nodeagent.flags import COMMANDS, MODIFIERS, PROBES, SERVICES, VALUES
from cni_calico.nodeagent.service_control import AGENT, FILE
from cni_calico.nodeagent.status.flow_metrics import ask_recorder
from cni_calico.plugin.call.client import call_server
from tests.deadlines import until
from tests.e2e.etcd.certificates import make_authority
from tests.e2e.forks import forks_in
from tests.e2e.host import etcd_in
from tests.netns.agents import EtcdStore
from tests.netns.namespaces import namespace
from tests.netns.nodes import Node
from tests.netns.policing.lab import socket_in
from tests.netns.startups import add_card, read_all
from tests.netns.wire import ROUTER, frame
from tests.unit.nodeagent.fabric import workload

pytestmark = pytest.mark.netns


@pytest.fixture
def node_that_started(agent_node: Node) -> Node:
    """Set up, on a pool that needs a VXLAN address; no part is running."""
    agent_node.calico_node("-startup")
    return agent_node


def record(node: Node, path: str = "nodes/n1") -> dict[str, Any]:
    found: dict[str, Any] = read_all(node.store.path)[path]
    return found


def answers(node: Node) -> bool:
    return call_server(f"{node.root}/run/cni.sock", "metrics", {}, b"") is not None


def succeeds(node: Node, *flags: str) -> bool:
    return node.calico_node(*flags, check=False).returncode == 0


def move(node: Node) -> None:
    node.ns.do("addr", "del", "10.0.0.1/24", "dev", "eth0")
    node.ns.do("addr", "add", "10.0.0.99/24", "dev", "eth0")


def ask_for_status(node: Node) -> None:
    spec = {"node": "n1", "classes": ["Agent"], "updatePeriodSeconds": 1}
    node.store.put(Resource("CalicoNodeStatus", Metadata("s"), spec))


def nothing(node: Node) -> None:
    """Before or after the start."""


Step = Callable[[Node], object]
# flag -> (what happens once it runs, what it then does)
RUNS: dict[str, tuple[Step, Step]] = {
    "felix": (nothing, lambda node: (node.root / "lib" / "mtu").exists() and succeeds(node, "-felix-live")),
    "confd": (nothing, lambda node: succeeds(node, "-bird-live") and succeeds(node, "-bird6-live")),
    "allocate-tunnel-addrs": (nothing, lambda node: record(node)["spec"].get("ipv4VXLANTunnelAddr")),
    "monitor-addresses": (move, lambda node: record(node)["spec"]["bgp"]["ipv4Address"] == "10.0.0.99/24"),
    "status-reporter": (ask_for_status, lambda node: record(node, "caliconodestatuses/s").get("status")),
    "cni-server": (nothing, answers),
    "run": (nothing, lambda node: succeeds(node, "-felix-live", "-felix-ready")),
    "node-services": (nothing, lambda node: succeeds(node, "-felix-live", "-felix-ready")),
    # Kubernetes is told of these; without it they wait (tests/e2e has those with an API server)
    "monitor-token": (nothing, lambda node: True),
    "complete-startup": (nothing, lambda node: True),
}


@pytest.mark.bird
@pytest.mark.parametrize("flag", RUNS)
def test_a_part_alone(node_that_started: Node, flag: str) -> None:
    happens, does = RUNS[flag]
    node_that_started.more = {"CALICO_NETWORKING_BACKEND": "bird", "AUTODETECT_POLL_INTERVAL": "1s"}
    node_that_started.run(f"-{flag}")
    until(lambda: waits_for_signals(node_that_started), f"-{flag} is up", 20)
    happens(node_that_started)
    until(lambda: does(node_that_started), f"-{flag} does its thing", 30)
    assert node_that_started.process is not None and node_that_started.process.poll() is None
    code, seconds = node_that_started.stop()
    assert (code, seconds < 5) == (0, True), node_that_started.log()
    assert "Traceback" not in node_that_started.log()


def waits_for_signals(node: Node) -> bool:
    """Whether it handles SIGTERM by now: before, the signal would end it as any process."""
    assert node.process is not None and node.process.poll() is None, node.log()
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def gone(node: Node) -> None:
    for name in ("run", "lib"):
        os.rename(node.root / name, node.root / f"old-{name}")


# flags -> (what happens before, what is so afterwards)
COMMANDS_DO: dict[str, tuple[Step, Step]] = {
    "-init": (gone, lambda node: (node.root / "lib").is_dir() and (node.root / "run").is_dir()),
    "-init -best-effort": (gone, lambda node: (node.root / "lib").is_dir()),
    "-hostpath-init": (gone, lambda node: (node.root / "lib").is_dir()),
    "-boot-table": (nothing, lambda node: "inet calico-boot" in node.ns.run("nft", "list", "tables").stdout),
    "-startup": (gone, lambda node: (node.root / "lib" / "nodename").read_text() == "n1"),
    "-allocate-tunnel-addrs-run-once": (nothing, lambda node: "ipv4VXLANTunnelAddr" in record(node)["spec"]),
    "-confd-run-once -confd-confdir=/etc/calico/confd -confd-keep-stage-file": (
        nothing,
        lambda node: (node.root / "bird" / "bird.cfg").exists(),
    ),
    "-shutdown": (nothing, lambda node: parse_rfc3339((node.root / "lib" / "shutdownTS").read_text())),
    "-show-status": (nothing, lambda node: "node:" in node.calico_node("-show-status").stdout),
    "-v": (nothing, lambda node: node.calico_node("-v").stdout.startswith("v")),
}


@pytest.mark.bird
@pytest.mark.parametrize("flags", COMMANDS_DO)
def test_a_command(node_that_started: Node, flags: str) -> None:
    before, holds = COMMANDS_DO[flags]
    node_that_started.more = {"CALICO_NETWORKING_BACKEND": "bird"}
    before(node_that_started)
    try:
        node_that_started.calico_node(*flags.split())
        assert holds(node_that_started)
    finally:
        end_bird(node_that_started)


def end_bird(node: Node) -> None:
    """-confd-run-once leaves it running."""
    file = node.root / "run" / "bird.pid"
    if file.exists():
        os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("flag", PROBES)
def test_probes_of_a_node_on_which_nothing_runs(node_that_started: Node, flag: str) -> None:
    node_that_started.more = {"CALICO_NETWORKING_BACKEND": "bird"}
    done = node_that_started.calico_node(f"-{flag}", "-threshold-time=30s", check=False)
    assert done.returncode == 1 and done.stderr.startswith("calico-node: "), done


def test_no_flag_is_left_out() -> None:
    named = {word.lstrip("-").partition("=")[0] for flags in COMMANDS_DO for word in flags.split()}
    # tests/netns/flows, tests/unit/flows and tests/netns/test_rehearsal.py have them
    elsewhere = {"flow-recorder", "flows", "flows-pipe", "rehearse", "threshold-time"}
    assert {*RUNS, *named, *PROBES, *elsewhere} == {
        *SERVICES,
        *COMMANDS,
        *PROBES,
        *MODIFIERS,
        *VALUES,
    }


def test_a_bare_felix_in_the_run_scripts_words(node_that_started: Node) -> None:
    """Upstream's run script exports FELIX_ forms only; today's variables are empty there."""
    node_that_started.more = {
        "NODENAME": "",
        "DATASTORE_TYPE": "",
        "FELIX_FELIXHOSTNAME": "n1",
        "FELIX_DATASTORETYPE": "local",
    }
    node_that_started.run("-felix")
    until(
        lambda: node_that_started.status().get("synced") and node_that_started.status()["node"] == "n1",
        "the agent works",
        30,
    )


@pytest.mark.etcd
@pytest.mark.parametrize("how", ["endpoints", "address", "certificates"])
def test_a_bare_felix_on_etcd_in_the_run_scripts_words(tmp_path: Path, bundle: Path, how: str) -> None:
    """The datastore's place and certificates are in FELIX_ forms, too; it works on the records of that very etcd."""
    authority = make_authority(tmp_path / "pki")
    server, server_key = authority.issue("server", "etcd", "serverAuth", "IP:127.0.0.1")
    client, client_key = authority.issue("client", "felix", "clientAuth")
    secured = [f"--cert-file={server}", f"--key-file={server_key}"]
    secured += [f"--trusted-ca-file={authority.certificate}", "--client-cert-auth"]
    files = {"ETCD_KEY_FILE": client_key, "ETCD_CERT_FILE": client, "ETCD_CA_CERT_FILE": authority.certificate}
    tls = how == "certificates"
    told, today = {
        "endpoints": ({"FELIX_ETCDENDPOINTS": "http://127.0.0.1:2379"}, {}),
        "address": ({"FELIX_ETCDADDR": "127.0.0.1:2379", "FELIX_ETCDSCHEME": "http"}, {}),
        "certificates": (
            {
                "FELIX_ETCDENDPOINTS": "https://127.0.0.1:2379",
                "FELIX_ETCDKEYFILE": str(client_key),
                "FELIX_ETCDCERTFILE": str(client),
                "FELIX_ETCDCAFILE": str(authority.certificate),
            },
            {name: str(path) for name, path in files.items()},
        ),
    }[how]
    with (
        namespace("node") as ns,
        etcd_in(ns, tmp_path, scheme="https" if tls else "http", arguments=secured if tls else ()) as etcd,
        forks_in(ns) as forks,
    ):
        add_card(ns, "eth0", "10.0.0.1/24")
        store = EtcdStore(etcd.client_url, forks, **{name.lower(): text for name, text in today.items()})
        node = Node(ns, "n1", tmp_path / "n1", store, more=today, bin_dir=bundle)
        node.root.mkdir()
        node.calico_node("-startup")
        empty = dict.fromkeys(["NODENAME", "CALICO_NODENAME_FILE", "DATASTORE_TYPE", "ETCD_ENDPOINTS"], "")
        felix = {"FELIX_FELIXHOSTNAME": "n1", "FELIX_DATASTORETYPE": "etcdv3"}
        node.more = {**empty, **felix, **told}
        try:
            node.run("-felix").until_applied()
            assert node.status()["node"] == "n1"
            add_card(ns, "calia")
            node.store.put(workload("w", "calia", "10.65.1.5/32"))  # in that very etcd
            until(lambda: any(r["dst"] == "10.65.1.5" for r in ns.routes()), "its route", 30)
        finally:
            node.end()


@pytest.mark.parametrize("disabled", ["true", "false"])
def test_another_agents_data_plane(agent_node: Node, disabled: str) -> None:
    """CALICO_DISABLE_FELIX: everything runs but the part that programs the kernel."""
    agent_node.more = {"CALICO_DISABLE_FELIX": disabled}
    agent_node.run()
    services = agent_node.root / "run" / FILE
    until(lambda: services.exists() and AGENT in json.loads(services.read_text()), "the agent runs", 60)
    process = json.loads(services.read_text())[AGENT]["pid"]
    flags = {"-felix", "-confd", "-allocate-tunnel-addrs", "-monitor-addresses"}
    if disabled == "true":
        flags.remove("-felix")
    until(lambda: flags <= set(words(process)), "its parts", 30)
    assert ("-felix" in words(process)) == (disabled == "false")


def words(process: int) -> list[str]:
    """Of the command line."""
    return Path(f"/proc/{process}/cmdline").read_text().split("\0")


def test_the_time_of_a_shutdown(node_that_started: Node) -> None:
    """Written before the datastore is asked, and gone once the node has started again."""
    elsewhere = node_that_started.root / "lib" / "down"
    node_that_started.more = {
        "CALICO_SHUTDOWN_TIMESTAMP_FILE": str(elsewhere),
        "DATASTORE_TYPE": "etcdv3",
        "ETCD_ENDPOINTS": "http://127.0.0.1:1",
    }
    assert node_that_started.calico_node("-shutdown", check=False).returncode in (0, 1)
    assert parse_rfc3339(elsewhere.read_text()) is not None
    node_that_started.more = {"CALICO_SHUTDOWN_TIMESTAMP_FILE": str(elsewhere)}
    node_that_started.calico_node("-startup")
    assert not elsewhere.exists()


def test_a_felixconfiguration_that_selects_nodes_is_used_by_those(node_that_started: Node) -> None:
    """And by its name if a parameter of it cannot be used."""
    for name, selector in (("racks", "!has(rack)"), ("others", "has(rack)")):
        spec = {"nodeSelector": selector, "noSuchParameter": name}
        node_that_started.store.put(Resource("FelixConfiguration", Metadata(name), spec))
    node_that_started.run("-felix").until_applied()
    until(lambda: "of FelixConfiguration racks" in node_that_started.log(), "it says so", 30)
    assert "of FelixConfiguration others" not in node_that_started.log()


def test_a_felixconfiguration_says_how_much_is_recorded_while_it_is(node_that_started: Node) -> None:
    """Its annotations reach the recorder that runs: how many connections it follows, and how many packets a second."""
    node, store = node_that_started, node_that_started.store
    store.put(workload("web", "caliweb", "10.65.0.2/32"))
    open_to_all = {"selector": "all()", "types": ["Egress"], "egress": [{"action": "Allow"}]}
    store.put(Resource("GlobalNetworkPolicy", Metadata("open"), open_to_all))
    node.ns.do("link", "add", "caliweb", "type", "veth", "peer", "name", "inside")
    node.ns.do("link", "set", "caliweb", "address", ROUTER, "up")
    node.ns.do("link", "set", "inside", "up")
    node.ns.set_sysctl("netfilter/nf_conntrack_checksum", "0")  # ``frame`` has none

    def say(**parameters: str) -> None:
        annotations = {f"config.projectcalico.org/{name}": value for name, value in parameters.items()}
        spec = {"defaultEndpointToHostAction": "Accept"}
        store.put(Resource("FelixConfiguration", Metadata("default", annotations=annotations), spec))

    say(Flows="Enabled", FlowsMaxLive="1000")
    node.more["FELIX_FLOWS"] = ""  # as if it were not set, which would win
    node.run("-felix").until_applied()
    sports, packet = iter(range(1, 1 << 16)), {"source": ip_address("10.65.0.2"), "destination": ip_address("10.0.0.1")}
    with socket_in(node.ns, socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind(("inside", 0))

        def connect(count: int) -> Mapping[str, Any]:
            for sport in islice(sports, count):
                raw.send(frame({**packet, "protocol": 17, "sport": sport, "dport": 9}, sport))
            return ask_recorder(f"{node.root}/run") or {}

        until(lambda: connect(1).get("allowed"), "it is recorded", 30, pause_s=0.1)
        connect(1200)
        said = until(lambda: (found := connect(0))["allowed"] >= 1200 and found, "all are recorded", 30)
        assert said["live"] == 1000 and said["unfollowed"] == said["allowed"] - 1000 and not any(said["lost"].values())
        say(Flows="Enabled", FlowsMaxLive="2000", FlowsMaxRate="100")
        said = until(
            lambda: (found := connect(300))["lost"]["nflog-allowed"] and found, "it is too much", 30, pause_s=0.2
        )
        assert said["live"] > 1000
    flows = node.calicoctl("flows", "--host", "--since", "1h", "--port", "1")
    assert re.search(r"not recorded: \d+ reports of what was let through .* \(rate\)", flows.stderr), flows.stderr
