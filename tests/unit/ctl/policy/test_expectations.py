"""``calicoctl policy test``: expectations that hold and that do not, and what is refused."""

import json
from pathlib import Path

import pytest

from cni_calico.ctl.main import run
from cni_calico.ctl.policy import expectations
from tests.unit.ctl.policy.shop import POLICIES, endpoints_file, policy, stored, write


def expecting(*expectations, **more):
    return {"apiVersion": "cni-calico.dev/v1", "kind": "PolicyTest", "namespace": "shop", **more} | {
        "expectations": list(expectations)
    }


WEB, CACHE, DB = ({"labels": {"app": app}} for app in ("web", "cache", "db"))
HOLDING = (
    {"from": WEB, "to": DB, "port": 5432, "expect": "allowed"},
    {"from": CACHE, "to": DB, "port": 5432, "expect": "denied"},
    {"from": WEB, "to": DB, "port": 5433, "expect": "denied"},
    {"from": "192.0.2.1", "to": DB, "port": 5432, "expect": "denied"},
    {"from": DB, "to": "192.0.2.1", "protocol": "UDP", "port": 53, "expect": "allowed"},
    {"from": WEB, "to": DB, "protocol": "ICMP", "expect": "denied"},
)


@pytest.fixture
def by_files(tmp_path, capsys):
    """(exit status, output, errors) of expectations against policies alone."""

    def do(document, policies, *options):
        file = write(tmp_path / "expected.yaml", document)
        with_policies = write(tmp_path / "policies.yaml", *policies)
        capsys.readouterr()
        code = run(["policy", "test", file, "--with", with_policies, "--alone", *options], {})
        return code, *capsys.readouterr()

    return do


def test_manifests_alone_with_labels(by_files):
    assert by_files(expecting(*HOLDING), [POLICIES["database"]]) == (0, "6 of 6 expectations hold.\n", "")


def test_what_does_not_hold_says_who_decides(by_files):
    turned = [{**one, "expect": "denied" if one["expect"] == "allowed" else "allowed"} for one in HOLDING]
    turned[0]["name"] = "web needs it"
    code, out, _ = by_files(expecting(*turned), [POLICIES["database"]])
    assert code == 1 and out.endswith("0 of 6 expectations hold.\n")
    assert "shop/app=web -> shop/app=db tcp/5432 (web needs it): expected denied" in out
    assert "shop/app=cache -> shop/app=db: ingress DENIED at the end of tier default" in out


def test_each_workload_with_the_labels_counts(by_files, tmp_path):
    """One of the two pods web has a policy of its own."""
    pods = endpoints_file(tmp_path)
    held = expecting({"from": "web-1", "to": "shop/db-0", "port": 5432, "expect": "allowed"}, HOLDING[0])
    assert by_files(held, [POLICIES["database"]], "--endpoints", pods)[0] == 0
    named = {"from": {"namespace": "shop", "pod": "absent"}, "to": DB, "port": 1, "expect": "denied"}
    code, out, _ = by_files(expecting(named), [POLICIES["database"]], "--endpoints", pods, "-o", "json")
    assert code == 1 and json.loads(out)["failed"][0]["why"] == ["there is no workload shop/absent"]


def test_the_live_cluster_and_files_that_are_not_applied_yet(calicoctl, tmp_path):
    calicoctl.write(stored([POLICIES["database"]]))
    file = write(tmp_path / "expected.yaml", expecting(*HOLDING))
    assert calicoctl.ok("policy", "test", file) == "6 of 6 expectations hold.\n"
    closed = write(tmp_path / "closed.yaml", policy("database", "app == 'db'", []))
    found = calicoctl("policy", "test", file, "--with", closed)
    assert found.code == 1 and found.out.endswith("5 of 6 expectations hold.\n")


def test_labels_that_no_stored_workload_has_have_failed(calicoctl, tmp_path):
    calicoctl.write(stored([]))
    file = write(tmp_path / "expected.yaml", expecting({**HOLDING[1], "from": {"labels": {"app": "none"}}}))
    found = calicoctl("policy", "test", file)
    assert found.code == 1 and "there is no workload shop/app=none" in found.out


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"apiVersion": "v1", "kind": "Pod"}, "is no file of expectations"),
        (expecting(), "not empty"),
        (expecting(HOLDING[0], extra=1), "there is no field extra"),
        (expecting({**HOLDING[0], "prot": "TCP"}), "there is no field prot"),
        (expecting({**HOLDING[0], "expect": "allow"}), "allowed or denied"),
        (expecting({**HOLDING[0], "port": "5432"}), "port must be"),
        (expecting({**HOLDING[0], "port": 0}), "port must be"),
        (expecting({**HOLDING[0], "protocol": "HTTP"}), "protocol"),
        (expecting({**HOLDING[5], "port": 1}), "have ports"),
        (expecting({**HOLDING[5], "icmp": {"code": 1}}), "icmp has type"),
        (expecting({**HOLDING[0], "from": {"labels": ["app"]}}), "labels must be"),
        (expecting({**HOLDING[0], "from": {"address": "web"}}), "web"),
        (expecting({**HOLDING[0], "from": {"pod": "web", **WEB}}), "give pod, or labels"),
        (expecting({**HOLDING[0], "from": {}}), "it must be a name"),
        (expecting({**HOLDING[0], "from": "/"}), "it must be POD"),
        (expecting({"from": WEB, "to": DB, "port": 1}), "expect must be given"),
        (expecting("web"), "it must be an object"),
    ],
)
def test_what_is_no_expectation_is_refused(by_files, document, why):
    code, out, err = by_files(document, [POLICIES["database"]])
    assert (code, out) == (2, "")
    assert why in err and "expected.yaml" in err


def test_two_outside_addresses_have_failed(by_files):
    code, out, _ = by_files(
        expecting({"from": "192.0.2.1", "to": "192.0.2.2", "port": 1, "expect": "allowed"}), [POLICIES["database"]]
    )
    assert code == 1 and "neither end is a workload" in out


HOST = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "HostEndpoint",
    "metadata": {"name": "n1-eth0", "labels": {"host": "yes"}},
    "spec": {"node": "n1", "interfaceName": "eth0", "expectedIPs": ["198.51.100.1"]},
}
GUARD = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "GlobalNetworkPolicy",
    "metadata": {"name": "guard"},
    "spec": {
        "selector": "host == 'yes'",
        "applyOnForward": True,
        "types": ["Ingress"],
        "ingress": [
            {"action": "Allow", "protocol": "TCP", "destination": {"ports": [5432, 9100]}},
        ],
    },
}
AT_HOSTS = (
    {"from": "192.0.2.1", "to": "198.51.100.1", "port": 9100, "expect": "allowed"},
    {"from": "192.0.2.1", "to": "198.51.100.1", "port": 22, "expect": "allowed"},  # failsafe
    {"from": "192.0.2.1", "to": "198.51.100.1", "port": 23, "expect": "denied"},
    {"from": "192.0.2.1", "to": DB, "port": 5432, "expect": "allowed"},
    {"from": "192.0.2.1", "to": DB, "port": 5433, "expect": "denied"},
    {"from": WEB, "to": DB, "port": 5433, "expect": "allowed"},  # it does not leave the node
)


def test_what_host_endpoints_decide(by_files, tmp_path):
    pods, hosts = endpoints_file(tmp_path), write(tmp_path / "hosts.yaml", HOST)
    options = ["--endpoints", pods, "--endpoints", hosts]
    assert by_files(expecting(*AT_HOSTS), [GUARD], *options) == (0, "6 of 6 expectations hold.\n", "")
    turned = [{**one, "expect": "denied" if one["expect"] == "allowed" else "allowed"} for one in AT_HOSTS]
    code, out, _ = by_files(expecting(*turned), [GUARD], *options)
    assert code == 1 and out.endswith("0 of 6 expectations hold.\n")
    assert "DENIED at the end of tier default, at HostEndpoint n1-eth0 (the host itself)" in out
    assert "DENIED at the end of tier default, at HostEndpoint n1-eth0 (forwarded)" in out


def test_an_interface_that_nobody_knows_has_failed(by_files, tmp_path):
    other = {**HOST, "metadata": {"name": "n1-eth1"}, "spec": {"node": "n1", "interfaceName": "eth1"}}
    pods, hosts = endpoints_file(tmp_path), write(tmp_path / "hosts.yaml", HOST, other)
    code, out, _ = by_files(expecting(AT_HOSTS[4]), [GUARD], "--endpoints", pods, "--endpoints", hosts)
    assert code == 1 and "it depends on the interface" in out


def test_options_that_do_not_go_together(capsys, tmp_path):
    file = write(tmp_path / "expected.yaml", expecting(*HOLDING))
    for options, why in ((["--alone"], "has no policies"), (["--endpoints", file], "is for --alone")):
        assert run(["policy", "test", file, *options], {}) == 2
        assert why in capsys.readouterr().err


def test_the_schema_names_what_is_read():
    """The fields, and which of them must be given."""
    schema = json.loads((Path(__file__).resolve().parents[4] / "docs" / "expectations.schema.json").read_text())
    item = schema["properties"]["expectations"]["items"]
    assert set(item["properties"]) == expectations.FIELDS
    assert set(schema["$defs"]["end"]["oneOf"][1]["properties"]) == expectations.END_FIELDS
    assert (schema["properties"]["kind"]["const"], schema["properties"]["apiVersion"]["const"]) == (
        expectations.KIND,
        expectations.VERSION,
    )
    assert schema["properties"]["expectations"]["maxItems"] == expectations.MOST
