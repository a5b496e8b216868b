"""``calicoctl policy replay``: recorded flows, judged by another policy; each is what ``decide`` says of its packet."""

import json

import pytest

from cni_calico.ctl.main import run
from tests.unit.ctl.policy.shop import (
    POLICIES,
    endpoints_file,
    flow,
    pod,
    policy,
    stored,
    write,
    write_flows,
)


@pytest.fixture
def replayed(tmp_path, capsys):
    """(exit status, output, errors) of a replay between directories."""
    pods_file = endpoints_file(tmp_path)

    def do(old, new, flows, *options):
        for name, documents in (("old", old), ("new", new)):
            (tmp_path / name).mkdir(exist_ok=True)
            write(tmp_path / name / "all.yaml", *documents)
        lines = write_flows(tmp_path / "flows.jsonl", *flows)
        capsys.readouterr()
        sides = ("--dir", str(tmp_path / "old"), "--with", str(tmp_path / "new"), "--endpoints", pods_file)
        code = run(["policy", "replay", *sides, "--flows", lines, *options], {})
        return code, *capsys.readouterr()

    return do


def denied(port):
    return {"action": "Deny", "protocol": "TCP", "destination": {"ports": [port]}}


CLOSED = policy("database", "app == 'db'", [])


def test_what_was_allowed_would_be_denied(replayed):
    code, out, err = replayed([POLICIES["database"]], [CLOSED], [flow("web-1", "db-0"), flow("web-2", "db-0", count=6)])
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "Network sets and services are as now, labels as recorded. "
        "Of 7 connections those of an end were not recorded: they are those of now.",
        "",
        "shop/app=web -> shop/app=db  tcp/5432  allowed by rule 1 of NetworkPolicy shop/database  ->  "
        "DENIED at the end of tier default",
        "    7 connections, last 2026-11-26T14:02:11.403+00:00",
        "",
        "7 connections would be denied, 0 as they were.",
    ]


def test_nothing_changes(replayed):
    code, out, _ = replayed([POLICIES["database"]], [POLICIES["database"]], [flow("web-1", "db-0", count=3)])
    assert code == 0 and "0 connections would be denied, 3 as they were." in out


def test_what_would_be_allowed_counts_only_with_any(replayed):
    flows = [flow("cache-0", "db-0", verdict="denied")]
    opened = policy("database", "app == 'db'", [("all()", [5432])])
    assert replayed([POLICIES["database"]], [opened], flows)[0] == 0
    code, out, _ = replayed([POLICIES["database"]], [opened], flows, "--any")
    assert code == 1 and "shop/app=cache -> shop/app=db  tcp/5432  DENIED at the end of tier default" in out


def test_what_has_changed_since_is_told_apart(replayed):
    code, out, _ = replayed([CLOSED], [CLOSED], [flow("web-1", "db-0", count=2)], "-o", "json")
    found = json.loads(out)
    assert code == 0 and found["changes"] == [] and found["unchanged"] == 0
    assert [(one["before"], one["connections"]) for one in found["changedSince"]] == [("allowed", 2)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (flow("gone-7d9-x2k4", "db-0"), "a pod that is gone"),
        (flow("web-1", "db-0", sender={"kind": "network", "name": "192.0.2.0/24"}), "recorded as a network"),
        (flow("web-1", "db-0", sender={"kind": "networkset", "name": "partners"}), "or a network set"),
        ({"lost": 1, "why": "too many"}, "not in any line"),
        (flow("web-1", "db-0", sender={"kind": "address", "ip": "192.0.2.1"}, to={"ip": "192.0.2.2"}), "host endpoint"),
    ],
)
def test_what_cannot_be_judged_is_uncertain(replayed, line, why):
    _, out, _ = replayed([POLICIES["database"]], [CLOSED], [line], "-o", "json")
    found = json.loads(out)
    ((said, number),) = found["uncertain"].items()
    assert why in said and number == 1
    assert (found["changes"], found["unchanged"]) == ([], 0)


OUTSIDE, ITSELF = {"kind": "address", "ip": "192.0.2.1"}, {"ip": "198.51.100.1"}
KNOWN = {"bytes": {"in": 60, "out": 60}, "ended": True}  # one connection, of which it is known where it was sent


def host(interface="eth0", **spec):
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": "HostEndpoint",
        "metadata": {"name": f"n1-{interface}", "labels": {"host": "yes", "at": interface}},
        "spec": {"node": "n1", "interfaceName": interface, **spec},
    }


HERE = host(expectedIPs=["198.51.100.1"], profiles=["projectcalico-default-allow"])


def edge(selector="host == 'yes'", **spec):
    found = {"selector": selector, "types": ["Ingress"], **spec}
    metadata = {"name": "edge"}
    return {"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": metadata, "spec": found}


def single(line):
    line["source"]["port"] = 40000
    return {**line, **KNOWN}


ALLOW = {"action": "Allow"}
BLOCKED = {"action": "Deny", "source": {"nets": ["192.0.2.0/24"]}}
FORWARDED, EARLY, RAW = ({"applyOnForward": True, **more} for more in ({}, {"preDNAT": True}, {"doNotTrack": True}))
INTO_POD, INTO_HOST = ({"sender": OUTSIDE}, {"sender": OUTSIDE, "to": ITSELF})
OUT_OF_POD = flow("web-1", "x", port=80, to={"ip": "192.0.2.9"})
OUT_OF_HOST = flow("x", "x", port=80, sender=ITSELF, to={"ip": "192.0.2.9"})
THROUGH = flow("x", "x", port=80, sender=OUTSIDE, to={"ip": "203.0.113.9"})


@pytest.mark.parametrize(
    ("stage", "line", "found"),
    [
        ({**FORWARDED, "ingress": [denied(5432), ALLOW]}, flow("x", "db-0", **INTO_POD), "forwarded"),
        ({**FORWARDED, "ingress": [denied(81), ALLOW]}, flow("x", "db-0", **INTO_POD), "unchanged"),
        ({**FORWARDED, "ingress": [denied(5432)]}, flow("web-1", "db-0"), "unchanged"),  # it does not leave the node
        ({**FORWARDED, "types": ["Egress"], "egress": [denied(80)]}, OUT_OF_POD, "forwarded"),
        ({**EARLY, "ingress": [denied(81)]}, flow("x", "db-0", **INTO_POD), "not recorded where"),  # maybe to port 81
        ({**EARLY, "ingress": [denied(81)]}, single(flow("x", "db-0", **INTO_POD)), "unchanged"),
        ({**EARLY, "ingress": [denied(5432)]}, single(flow("x", "db-0", **INTO_POD)), "preDNAT"),
        ({**EARLY, "ingress": [BLOCKED]}, flow("x", "db-0", **INTO_POD), "preDNAT"),  # wherever it was sent
        ({**RAW, "ingress": [BLOCKED]}, flow("x", "db-0", **INTO_POD), "doNotTrack"),
        ({**RAW, "ingress": [ALLOW]}, flow("x", "db-0", **INTO_POD), "nobody knows about its answers"),
        ({"ingress": [denied(5432)]}, flow("x", "db-0", **INTO_POD), "unchanged"),  # only what the host itself gets
        ({"ingress": [denied(9100)]}, flow("x", "x", port=9100, **INTO_HOST), "the host itself"),
        ({"ingress": [denied(22)]}, flow("x", "x", port=22, **INTO_HOST), "unchanged"),  # a failsafe port
        ({"ingress": [denied(22), ALLOW]}, flow("x", "x", port=80, **INTO_HOST), "unchanged"),
        ({"types": ["Egress"], "egress": []}, OUT_OF_HOST, "the host itself"),
        ({**FORWARDED, "ingress": []}, THROUGH, "forwarded"),  # only routed
    ],
)
def test_what_a_host_endpoint_decides(replayed, tmp_path, stage, line, found):
    """It is judged where it was passed; what is not known of a flow is uncertain, never unchanged."""
    write(tmp_path / "host.yaml", HERE)
    open_shop = {"apiVersion": HERE["apiVersion"], "kind": "Profile", "metadata": {"name": "kns.shop"}}
    open_shop["spec"] = {"ingress": [ALLOW], "egress": [ALLOW]}
    options = ["--endpoints", str(tmp_path / "host.yaml"), "-o", "json"]
    _, out, err = replayed([open_shop], [open_shop, edge(**stage)], [line], *options)
    said = json.loads(out)
    assert err == ""
    if found == "unchanged":
        assert (said["unchanged"], said["changes"], said["uncertain"]) == (1, [], {})
    elif said["uncertain"]:
        ((why, number),) = said["uncertain"].items()
        assert found in why and (number, said["unchanged"], said["changes"]) == (1, 0, [])
    else:
        assert [one["after"].rpartition(", at ")[2] for one in said["changes"]] == [f"HostEndpoint n1-eth0 ({found})"]
        assert said["unchanged"] == 0
    assert json.loads(replayed([open_shop], [open_shop], [line], *options)[1])["unchanged"] == 1


TWIN = pod(9, "twin-0", "cache")
TWIN["spec"]["ipNetworks"] = ["10.65.0.3/32"]
POD_ADDRESS = flow("web-1", "x", to={"ip": "10.65.0.3"})
OTHER_NODE = host("eth9", expectedIPs=["198.51.100.1"], node="n2")


@pytest.mark.parametrize(
    ("others", "line", "sure"),
    [
        ([TWIN], POD_ADDRESS, False),
        ([TWIN], flow("web-1", "db-0"), True),  # the flow says which of them
        ([host(expectedIPs=["10.65.0.3"])], POD_ADDRESS, False),
        ([host(expectedIPs=["10.65.0.4"])], POD_ADDRESS, True),
        ([HERE, OTHER_NODE], flow("x", "x", port=9100, **INTO_HOST), False),
        ([HERE], flow("x", "x", port=9100, **INTO_HOST), True),
    ],
)
def test_an_address_that_several_say_is_theirs_is_uncertain(replayed, tmp_path, others, line, sure):
    write(tmp_path / "others.yaml", *others)
    options = ["--endpoints", str(tmp_path / "others.yaml"), "-o", "json"]
    _, out, err = replayed([POLICIES["database"]], [CLOSED, edge(ingress=[denied(9100)])], [line], *options)
    found = json.loads(out)
    assert err == "" and len(found["changes"]) == sure and found["unchanged"] == 0
    assert sure or "several workloads or hosts" in str(found["uncertain"])


def test_what_was_denied_before_translation_may_go_anywhere(replayed, tmp_path):
    write(tmp_path / "host.yaml", HERE)
    line = flow("x", "x", port=443, verdict="denied", **INTO_HOST)
    options = ["--endpoints", str(tmp_path / "host.yaml"), "-o", "json", "--any"]
    _, out, _ = replayed([edge(**EARLY, ingress=[BLOCKED])], [edge(**EARLY, ingress=[ALLOW])], [line], *options)
    assert "denied before translation" in str(json.loads(out)["uncertain"])


@pytest.mark.parametrize(("verdict", "sure"), [("allowed", False), ("denied", True)])
def test_host_endpoints_that_do_not_agree(replayed, tmp_path, verdict, sure):
    """Which of two interfaces it took nobody says; but only one of them can have denied it."""
    write(tmp_path / "host.yaml", *(host(name, profiles=["projectcalico-default-allow"]) for name in ("eth0", "eth1")))
    options = ["--endpoints", str(tmp_path / "host.yaml"), "-o", "json", "--any"]
    states = [[], [edge("at == 'eth1'", **FORWARDED, ingress=[BLOCKED, ALLOW])]]
    line = flow("x", "db-0", verdict=verdict, **INTO_POD)
    _, out, _ = replayed(*(states if verdict == "allowed" else states[::-1]), [line], *options)
    found = json.loads(out)
    assert (len(found["changes"]), found["unchanged"]) == ((1, 0) if sure else (0, 0))
    assert sure or "do not agree" in str(found["uncertain"])


@pytest.mark.parametrize(("action", "sure"), [("Drop", False), ("Accept", True)])
def test_a_workload_and_its_own_node(calicoctl, tmp_path, action, sure):
    """What its policies let through there DefaultEndpointToHostAction decides about."""
    felix = {"apiVersion": HERE["apiVersion"], "kind": "FelixConfiguration", "metadata": {"name": "default"}}
    felix["spec"] = {"defaultEndpointToHostAction": action}
    closed = policy("closed", "app == 'web'", [], types=("Egress",))
    calicoctl.write(stored([closed, HERE, felix]))
    lines = write_flows(tmp_path / "flows.jsonl", flow("web-1", "x", verdict="denied", to=ITSELF))
    options = ("--without", "networkpolicy/shop/closed", "--any", "--flows", lines, "-o", "json")
    found = json.loads(calicoctl("policy", "replay", *options).out)
    assert (len(found["changes"]), found["unchanged"], len(found["uncertain"])) == ((1, 0, 0) if sure else (0, 0, 1))


def test_a_source_port_that_decides_is_uncertain(replayed):
    ported = policy("database", "app == 'db'", [("app == 'web'", [5432])])
    ported["spec"]["ingress"][0]["source"]["ports"] = ["1:2000"]
    _, out, _ = replayed([POLICIES["database"]], [ported], [flow("web-1", "db-0")], "-o", "json")
    assert "the source port decides, and sums have none" in json.loads(out)["uncertain"]


@pytest.mark.parametrize(
    ("protocol", "ip"), [("icmp", "192.0.2.1"), ("icmp6", "2001:db8::1"), ("icmpv6", "2001:db8::1")]
)
def test_pings_are_judged_as_calicoctl_flows_writes_them(replayed, protocol, ip):
    six = ":" in ip
    ping = flow("web-1", "db-0", sender={"kind": "address", "ip": ip}, to={"ip": "fd00::9" if six else "10.65.0.3"})
    del ping["destination"]["port"]
    line = {**ping, "protocol": protocol, "icmp": {"type": 128 if six else 8, "code": 0}, "verdict": "denied"}
    _, out, err = replayed([CLOSED], [CLOSED], [line], "-o", "json")
    assert err == "" and (json.loads(out)["unchanged"] == 1) == (not six)  # the pod has no address of the other family


def test_a_pod_that_is_gone_has_what_its_owners_others_have(replayed):
    code, out, _ = replayed([POLICIES["database"]], [CLOSED], [flow("web-9", "db-0")])
    assert code == 1 and "shop/app=web -> shop/app=db" in out


def test_whose_labels_are_those_of_now_is_said(replayed):
    """Of an address that nobody has named, and of a name that calicoctl gave; not of what is outside."""

    def of(**ends):
        line = flow("web-1", "db-0", **ends)
        line["destination"]["labels"] = {"app": "db"}
        return line

    web = {"kind": "pod", "namespace": "shop", "name": "web-1", "ip": "10.65.0.1", "labels": {"app": "web"}}
    recorded, outside = of(sender=web), of(sender={"kind": "address"}, verdict="denied", count=10)
    nameless = of(sender={"kind": "address", "ip": "10.65.0.1"}, count=200)
    given, gone = of(sender={**web, "labelsOfNow": True}, count=3000), of(sender={**web, "name": "job-1"}, count=40000)
    lines = [recorded, outside, nameless, given, gone]
    _, out, _ = replayed([POLICIES["database"]], [CLOSED], lines, "-o", "json")
    found = json.loads(out)
    assert (found["byLabelsOfNow"], found["uncertain"], found["unchanged"]) == (3200, {}, 10)
    assert sum(one["connections"] for one in found["changes"]) == 43201
    _, out, _ = replayed([POLICIES["database"]], [CLOSED], [recorded, outside])
    assert out.splitlines()[0] == "Network sets and services are as now, labels as recorded."


@pytest.mark.parametrize("command", ["replay", "diff", "recommend"])
def test_a_node_that_did_not_answer_is_trouble(tmp_path, capsys, command):
    """What it has seen nobody knows: nothing is called unchanged."""
    old, ends = write(tmp_path / "old.yaml", POLICIES["database"]), endpoints_file(tmp_path)
    ending = {"end": True, "unanswered": {"n2": "it sleeps"}}
    lines = write_flows(tmp_path / "flows.jsonl", flow("web-1", "db-0"), ending)
    change = ["-n", "shop"] if command == "recommend" else ["--with", old]
    assert run(["policy", command, "--dir", old, *change, "--endpoints", ends, "--flows", lines], {}) == 2
    said = "".join(capsys.readouterr())
    assert "n2 did not answer" in said


@pytest.mark.parametrize(("node", "who"), [("n2", "node n2"), ("", "this node")])
@pytest.mark.parametrize("command", ["replay", "diff", "recommend"])
def test_a_node_that_records_only_what_is_denied_is_trouble(tmp_path, capsys, command, node, who):
    """Which is the default: what it has let through would seem to be nothing."""
    old, ends = write(tmp_path / "old.yaml", POLICIES["database"]), endpoints_file(tmp_path)
    ending = {"end": True, "only_denied": [node]}
    lines = write_flows(tmp_path / "flows.jsonl", flow("web-1", "db-0"), ending)
    change = ["-n", "shop"] if command == "recommend" else ["--with", old]
    assert run(["policy", command, "--dir", old, *change, "--endpoints", ends, "--flows", lines], {}) == 2
    said = "".join(capsys.readouterr())
    assert f"{who} records only what is denied" in said


def test_no_flow_is_not_taken_for_no_change(replayed):
    code, out, _ = replayed([POLICIES["database"]], [CLOSED], [])
    assert code == 0 and out.splitlines()[-1] == "No flow was recorded: nothing was judged."


def test_a_connection_that_both_nodes_saw_counts_once(replayed):
    flows = [flow("web-1", "db-0", count=4, reporter=which) for which in ("src", "dst")]
    _, out, _ = replayed([POLICIES["database"]], [CLOSED], flows)
    assert "    4 connections" in out


def test_what_no_policy_decided_is_left_alone(replayed):
    line = flow("web-1", "db-0", verdict="denied", decided=[{"action": "Deny", "reason": "invalid"}])
    _, out, _ = replayed([POLICIES["database"]], [CLOSED], [line], "-o", "json")
    found = json.loads(out)
    assert (found["notByPolicy"], found["changes"], found["unchanged"]) == (1, [], 0)


@pytest.mark.parametrize("text", ["no JSON\n", "[1]\n", '{"verdict": "allowed"}\n', "[" * 100_000])
def test_a_file_of_no_flows_is_refused(replayed, tmp_path, text):
    (tmp_path / "bad").write_text(text)
    code, out, err = replayed([], [POLICIES["database"]], [], "--flows", str(tmp_path / "bad"))
    assert (code, out) == (2, "") and "cannot re" in err


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": "web-1"},
        {"source": {"kind": "pod", "namespace": {}, "name": "web-1", "ip": "10.65.0.1"}},
        {"destination": {"ip": "10.65.0.3", "port": [5432]}},
        {"connections": float("inf")},
        {"connections": None},
        {"decided": 1},
        {"decided": ["x"], "protocol": []},
    ],
)
def test_a_line_of_another_form_is_refused(replayed, wrong):
    code, out, err = replayed([], [POLICIES["database"]], [{**flow("web-1", "db-0"), **wrong}])
    assert (code, out) == (2, "") and "a line is no flow" in err


def test_without_a_stored_policy(calicoctl, tmp_path):
    calicoctl.write(stored([POLICIES["database"]]))
    lines = write_flows(tmp_path / "flows.jsonl", flow("cache-0", "db-0", verdict="denied"))
    found = calicoctl("policy", "replay", "--without", "networkpolicy/shop/database", "--any", "--flows", lines)
    assert found.code == 1 and "->  allowed by rule 1 of Profile kns.shop" in found.out
    absent = calicoctl("policy", "replay", "--without", "networkpolicy/shop/absent", "--flows", lines)
    assert absent.code == 2 and "there is no such policy" in absent.err


def test_a_stored_policy_whose_tier_is_missing_is_judged_last_and_named(calicoctl, tmp_path):
    """Nothing opens because of it: what it governs and does not allow is denied."""
    default = {"kind": "Tier", "metadata": {"name": "default"}, "spec": {"order": 1000000, "defaultAction": "Deny"}}
    calicoctl.write(stored([default, policy("lost", "app == 'db'", [("app == 'web'", [5432])], tier="nowhere")]))
    lines = write_flows(tmp_path / "flows.jsonl", flow("web-1", "db-0"), flow("cache-0", "db-0", verdict="denied"))
    file = write(tmp_path / "new.yaml", policy("other", "app == 'none'", []))
    found = calicoctl("policy", "replay", "--with", file, "--any", "--flows", lines)
    assert found.code == 0 and "0 connections" in found.out
    said = "NetworkPolicy shop/lost: its tier nowhere does not exist: it comes after all tiers that do"
    assert said in found.err
    compared = calicoctl("policy", "diff", "--with", file)
    assert compared.code == 0 and said in compared.err
    first = write(tmp_path / "first.yaml", policy("first", "app == 'db'", [], order=1))
    compared = calicoctl("policy", "diff", "--with", first)
    assert compared.code == 1 and "allowed by rule 1 of NetworkPolicy shop/lost" in compared.out
    assert "DENIED at the end of tier default" in compared.out


def test_without_a_recorder_it_says_so(calicoctl, tmp_path):
    calicoctl.write(stored([]))
    file = write(tmp_path / "new.yaml", POLICIES["database"])
    found = calicoctl("policy", "replay", "--with", file)
    assert found.code == 2 and "cannot read flows" in found.err
