"""What ``node status`` prints of what it was told, and what ``node diags`` hides."""

import json
import pathlib
import tarfile
from datetime import UTC, datetime, timedelta

import pytest

from cni_calico import faults
from cni_calico.ctl.main import run
from cni_calico.ctl.node.status import describe_recorder, render_agent, render_bird, render_family, render_span
from cni_calico.ctl.output.redaction import redact, secrets_in
from cni_calico.nodeagent.bgp.bird.status import BirdStatus, PeerStatus
from cni_calico.nodeagent.status.file import write_status

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
FIELDS = {"node": "n1", "synced": True, "updated": 100.0, "mtu": 1480, "routes": 3, "devices": {"tunl0": "10.65.0.1"}}


def test_status_of_an_agent():
    text = render_agent({**FIELDS, "policies": 2, "doubts": ["the node's address is on eth1"]}, 101.0)
    assert text == (
        "Calico process is running.\n"
        "Node:      n1\n"
        "Ready:     yes\n"
        "Datastore: in sync\n"
        "Tunnels:   tunl0 10.65.0.1\n"
        "MTU:       1480\n"
        "Routes:    3\n"
        "Policy:    NOT ENFORCED on this node, although 2 network policies exist\n"
        "CNI:       unknown\n"
        "\n"
        "Warnings about the node's address:\n"
        "  the node's address is on eth1\n"
    )


def test_status_of_each_part():
    """What fails beside the data plane is named, and so is what start-up does not get over."""
    fields = {
        **FIELDS,
        "cni": "the CNI server at /run/x does not answer: connection refused",
        "startup_error": "AS='high': expected an AS number",
        "environment": ["AS='high': expected an AS number"],
        "troubles": {"tunnel addresses": "no pool has an address left", "recorded DELs": "the datastore is away"},
    }
    text = render_agent(fields, 101.0)
    assert "Ready:     no: start-up fails: AS='high': expected an AS number\n" in text
    assert "CNI:       the CNI server at /run/x does not answer: connection refused\n" in text
    assert "Variables that are not used:\n  AS='high': expected an AS number\n" in text
    assert "Failing parts:\n  tunnel addresses: no pool has an address left\n  recorded DELs: the data" in text
    silent = render_agent({"cni": "the server answers"}, 1.0)
    assert silent.splitlines()[1] == "The CNI server answers."


def test_status_of_policies():
    """What is enforced is counted; what is not in force as written, and what is ignored, is named."""
    policing = {
        "in_force": True,
        "sentence": "2 policies are in force for 3 workloads",
        "problems": [
            "GlobalNetworkPolicy deny: spec: selectors that can be read; its last valid version stays in force"
        ],
        "warnings": ["NetworkPolicy shop/web: its http matches are ignored", "kube-proxy runs in mode ipvs"],
    }
    text = render_agent({**FIELDS, "policies": 2, "policing": policing}, 101.0)
    assert "Policy:    2 policies are in force for 3 workloads\n" in text
    said = [*policing["problems"], *policing["warnings"]]
    assert text.endswith("\nPolicies that are not in force as written:\n" + "".join(f"  {one}\n" for one in said))
    assert "not in force" not in render_agent(
        {**FIELDS, "policing": {**policing, "problems": [], "warnings": []}}, 101.0
    )


def test_what_is_about_the_host_is_no_policy():
    """Notes are those of the problems and warnings that name no policy."""
    lacking = "the check of proxy ARP's answers is not in force: legacy iptables has no such rules"
    mode = "NFTablesMode is Disabled: policies are enforced with legacy iptables and IP sets"
    ignored = "NetworkPolicy shop/web: its http matches are ignored"
    policing = {"in_force": True, "problems": [lacking], "warnings": [ignored, mode], "notes": [mode, lacking]}
    text = render_agent({**FIELDS, "policing": policing}, 101.0)
    assert f"\nPolicies that are not in force as written:\n  {ignored}\n\n" in text
    assert text.endswith(f"\nNotes on this host's packet filter:\n  {mode}\n  {lacking}\n")
    text = render_agent({**FIELDS, "policing": {**policing, "warnings": [mode]}}, 101.0)
    assert "as written" not in text


def test_a_node_without_bgp_says_so():
    said = render_bird("no such file", {"backend": "vxlan"}, NOW)
    assert said == "There is no BGP on this node: CALICO_NETWORKING_BACKEND is vxlan.\n"


def test_an_agent_that_fell_silent_does_not_run():
    assert render_agent(FIELDS, 1000.0).startswith("Calico process is not running: the agent last gave a sign of life")
    assert "has not started" in render_agent({}, 1.0)


def test_status_of_the_export_of_flows():
    said = {
        "allowed": 7,
        "denied": 1,
        "oldest": None,
        "lost": {},
        "disagreed": 0,
        "troubles": [],
        "without_room": [0, 0],
    }
    begin = "7 allowed and 1 denied recorded, lost: nothing"
    assert describe_recorder(said) == begin
    full = "; conntrack's table was full: 3 packets dropped, 4 connections forgotten early"
    assert describe_recorder({**said, "without_room": [3, 4]}) == begin + full
    assert describe_recorder({**said, "export": {"server": "", "local": True}}) == begin
    export = {"server": "goldmane:7443", "plain": False, "connected": True, "trouble": "", "received": 9, "queue": 2}
    figures = "9 acknowledged, 2 waiting, 0 lost"
    for more, text in (
        ({}, f"goldmane:7443: {figures}"),
        ({"connected": False}, f"goldmane:7443 (not connected yet): {figures}"),
        ({"plain": True}, f"goldmane:7443 (no TLS is set: unencrypted, not checked): {figures}"),
        ({"connected": False, "trouble": "no key"}, f"goldmane:7443: {figures}; no key"),
    ):
        shown = describe_recorder({**said, "export": {**export, "lost": 0, **more}})
        assert shown == f"{begin}; exported to {text}"


def test_status_of_peers():
    peers = (
        PeerStatus("Mesh_10_0_0_2", "Established", "2026-11-21T10:55:00+0000", "", "10.0.0.2", imported=3, exported=1),
        PeerStatus("Node_10_0_0_9", "Active", "2026-11-19T10:00:00+0000", "", "10.0.0.9", last_error="Refused"),
        PeerStatus("Mesh_10_0_0_3", "Down", "2026-11-21T10:55:00+0000", "", "10.0.0.3"),
    )
    table = render_family(4, peers, NOW)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| 10")]
    assert rows == [
        ["10.0.0.2", "node-to-node mesh", "up", "10:55:00", "Established", "1h5m", "3", "1"],
        ["10.0.0.9", "node specific", "start", "2026-11-19", "Active Refused", "", "0", "0"],
        ["10.0.0.3", "node-to-node mesh", "down", "10:55:00", "Down", "", "0", "0"],
    ]
    assert render_family(6, peers, NOW) == "IPv6 BGP status\nNo IPv6 peers found.\n"


def test_status_of_bird():
    bird = BirdStatus("2.0.12", "10.0.0.1", running=True, recovering=True)
    text = render_bird(bird, {"bgp": "BIRD refused it"}, NOW)
    assert text.startswith(
        "BGP: BIRD refused it\n\nBIRD 2.0.12, router ID 10.0.0.1\nA graceful restart is under way.\n"
    )
    assert render_bird("no such file", {}, NOW) == "BIRD is not running: no such file\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (432, "7m12s"), (7200, "2h0m"), (273600, "3d4h"), (-5, "0s")]
)
def test_spans(seconds, text):
    assert render_span(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    "text",
    [
        'password "s3cret";',
        '{"etcd_password": "s3cret", "a": 1}',
        '{"client-key-data":"s3cret"}',
        "ETCD_PASSWORD=s3cret",
        "    token: s3cret",
        "    token: 's3cret and s3cret'",
        r'password = "a\"b and s3cret"',
        "Authorization: Bearer s3cret",
        "curl -H 'Bearer s3cret'",
        "https://admin:s3cret@10.0.0.1:2379",
        "-----BEGIN RSA PRIVATE KEY-----\ns3cret\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\ns3cret",
    ],
)
def test_secrets_are_hidden(text):
    hidden = redact(f"before\n{text}\nafter\n")
    assert "s3cret" not in hidden
    assert hidden.startswith("before\n")


@pytest.mark.parametrize(
    "text",
    [
        "10.65.2.0/26 via 172.31.0.2 dev tunl0 proto bird metric 1024 onlink",
        '{"mtu": 1480, "podCIDR": "10.65.0.0/16"}',
        "protocol bgp Mesh_10_0_0_2 { local 10.0.0.1 as 64512; }",
        "keepalive: 30",
        "https://10.0.0.1:2379",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    ("configuration", "secrets"),
    [
        ('protocol bgp a { password "s3cret"; }', {"s3cret"}),
        ('{"k8s_auth_token": "abc.def", "etcd_key_file": "/etc/key"}', {"abc.def"}),
        ("ETCD_PASSWORD=two words\nETCD_KEY_FILE=/k", {"two words"}),
        ("ETCD_ENDPOINTS=https://admin:s3cret@10.0.0.1:2379", {"s3cret"}),
        ("users:\n- user:\n    token: eyJhbGciOi.x\n", {"eyJhbGciOi.x"}),
        ("    token: 'it is quoted'", {"it is quoted"}),
        (r'password "a\"b1"', {r"a\"b1", 'a"b1'}),
        ("CALICO_MANAGE_CNI=true\nsecretKeyRef: {name: bgp-secrets, key: rack}\npassword=no\ntoken: true", set()),
    ],
)
def test_the_secrets_in_a_configuration(configuration, secrets):
    assert secrets_in(configuration) == secrets


def test_a_known_secret_is_hidden_wherever_it_stands():
    text = "refused s3cret!\ndata: czNjcmV0, czNjcmV0Og==\nnothing\nETCD_PASSWORD=two words\n"
    hidden = redact(text, {"s3cret", "two words"})
    assert "s3cret" not in hidden and "czNjcmV0," not in hidden and "words" not in hidden
    assert "nothing" in hidden


def test_diags_of_a_host_where_nothing_runs(tmp_path: pathlib.Path, capsys):
    for name in ("log/cni", "bird", "run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "log" / "cni" / "cni.log").write_text("a line\npassword=s3cret\n")
    (tmp_path / "bird" / "bird.cfg").write_text('router id 10.0.0.1;\npassword "s3cret";\n')
    (tmp_path / "run" / "agent-status.json").write_text(json.dumps({"node": "n1"}))
    environ = {
        "CALICO_RUN_DIR": f"{tmp_path}/run",
        "CALICO_LOG_DIR": f"{tmp_path}/log",
        "CALICO_BIRD_CONFIG_DIR": f"{tmp_path}/bird",
    }
    target = tmp_path / "diags.tar.gz"
    assert run(["node", "diags", "-o", str(target)], environ) == 0
    assert str(target) in capsys.readouterr().out
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        texts = {name.partition("/")[2]: archive.extractfile(name).read().decode() for name in archive.getnames()}
    assert texts["logs/cni/cni.log"].startswith("a line\n")
    assert texts["config/bird/bird.cfg"].startswith("router id 10.0.0.1;\n")
    assert "lo:" in texts["network/links"]
    assert "cannot connect to BIRD" in texts["bird/show-status"]
    assert "not running" in texts["status"]
    assert not any("s3cret" in text for text in texts.values())
    assert run(["node", "diags", "-o", str(target)], environ) == 1  # never over a file that is there
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["before", "after"])
def test_no_half_archive_is_left(tmp_path: pathlib.Path, capsys, when: str):
    target = tmp_path / "diags.tar.gz"
    faults.install(faults.FaultPlan(f"ctl.write-archive:{when}:1:fail"))
    try:
        assert run(["node", "diags", "-o", str(target)], {"CALICO_RUN_DIR": f"{tmp_path}/run"}) == 1
    finally:
        faults.install(None)
    assert f"cannot write {target}" in capsys.readouterr().err
    assert not target.exists()


def test_status_where_nothing_runs(tmp_path, capsys):
    assert run(["node", "status"], {"CALICO_RUN_DIR": str(tmp_path)}) == 1
    said = capsys.readouterr()
    assert "Calico process is not running" in said.out
    assert "neither calico-node nor BIRD answers" in said.err


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"datastore_error": "connection refused"}, "not ready: the datastore is out of sync: connection refused"),
        ({"unmet": ["vxlan.calico is not there"]}, "not ready: vxlan.calico is not there"),
        (None, "calico-node does not answer on this host"),
    ],
)
def test_the_exit_status_says_whether_the_node_is_ready(tmp_path, capsys, monkeypatch, changed, said):
    policing = {"ready": True, "in_force": True, "sentence": "in force"}
    if changed is not None:
        write_status(str(tmp_path), {**FIELDS, "backend": "vxlan", "policing": policing, **changed})
    monkeypatch.setattr("cni_calico.ctl.node.status.read_status", lambda path, deadline: BirdStatus("2.0.12", "", ()))
    assert run(["node", "status"], {"CALICO_RUN_DIR": str(tmp_path)}) == (1 if said else 0)
    err = capsys.readouterr().err
    assert said in err and bool(err) == bool(said)
