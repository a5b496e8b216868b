"""``calicoctl policy``: decisions of stored records, and of files that are not applied yet."""

import json
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceKey, etcd_path
from tests.unit.ctl.conftest import stored

VECTORS = Path(__file__).resolve().parents[3] / "golden" / "policy"


PUBLISHED = "lets in members of network calnet only: its published ports are closed to others"


@pytest.mark.parametrize(("source", "expected"), [({"selector": "has(calnet)"}, True), ({}, False)])
def test_what_a_networks_profile_means_for_published_ports_is_shown(calicoctl, source, expected):
    spec = {"ingress": [{"action": "Allow", "source": source}], "egress": [{"action": "Allow"}]}
    endpoint = {
        "orchestrator": "cni",
        "node": "n1",
        "endpoint": "eth0",
        "containerID": "c1",
        "interfaceName": "cali1",
        "ipNetworks": ["10.0.0.1/32"],
        "profiles": ["calnet"],
    }
    records = {}
    for kind, name, namespace, body in (
        ("Profile", "calnet", "", {**spec, "labelsToApply": {"calnet": ""}}),
        ("WorkloadEndpoint", "n1-cni-c1-eth0", "default", endpoint),
    ):
        metadata = {"name": name, "uid": "u", "creationTimestamp": "2026-11-20T12:06:00Z"}
        metadata |= {"namespace": namespace} if namespace else {}
        document = {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": body}
        records[etcd_path(ResourceKey(kind, name, namespace))] = document
    calicoctl.write(records)
    assert (PUBLISHED in calicoctl.ok("policy", "show", "--all")) == expected


def tier_orders(name):
    resources = json.loads((VECTORS / f"{name}.input.json").read_text())["resources"]
    tiers = [resource for resource in resources if resource["kind"] == "Tier"]
    return {tier["metadata"]["name"]: tier["spec"].get("order", float("inf")) for tier in tiers}


def test_an_allowed_connection_names_both_rules(tiered_cluster):
    out = tiered_cluster("02-kubernetes-style").ok(
        "policy", "explain", "--from", "a", "--to", "default/b", "--port", "80"
    )
    assert out.splitlines()[0] == "default/a (10.65.0.1) to default/b (10.65.0.2), tcp/80:"
    assert "egress of default/a: allowed by rule 1 of Profile kns.default" in out
    assert "ingress of default/b: allowed by rule 1 of NetworkPolicy default/knp.default.web in tier default" in out
    assert '"ports": [80, "8000:8010"]' in out
    assert out.endswith("The connection is allowed.\n")


def test_a_denied_connection_says_where_it_ends(tiered_cluster):
    out = tiered_cluster("02-kubernetes-style").ok("policy", "explain", "--from", "a", "--to", "b", "--port", "81")
    assert "ingress of default/b: DENIED at the end of tier default" in out
    assert out.endswith("The connection is DENIED.\n")


def test_a_tier_that_does_not_exist_comes_last_and_is_named(tiered_cluster):
    """Tier security had order 100, before what lets everything in by TCP."""
    cluster = tiered_cluster("03-tiers")
    asked = ("policy", "explain", "--from", "10.65.1.3", "--to", "b", "--port", "80")
    assert "ingress of default/b: DENIED by rule 1 of GlobalNetworkPolicy sec-1 in tier security" in cluster.ok(*asked)
    cluster.write({etcd_path(ResourceKey("Tier", "security")): None})
    said = "GlobalNetworkPolicy sec-1: its tier security does not exist: it comes after all tiers that do, and what"
    found = cluster(*asked)
    assert found.code == 0 and said in found.err
    assert "ingress of default/b: allowed by rule 1 of NetworkPolicy default/z in tier default" in found.out
    found = cluster("policy", "show", "default/b")
    assert found.code == 0 and said in found.err
    ingress = found.out[found.out.index("  ingress") :]
    tiers = [line.split()[1] for line in ingress[: ingress.index("  egress")].splitlines() if "    tier " in line]
    assert tiers == ["kube-admin", "default", "kube-baseline", "security"]
    rest = ingress[ingress.index("tier security") :]
    assert "if none of their rules matches: denied" in rest[: rest.index("  egress")]


def test_an_address_outside_is_not_policed(tiered_cluster):
    out = tiered_cluster("02-kubernetes-style").ok(
        "policy", "explain", "--from", "192.0.2.1", "--to", "10.65.0.2", "--port", "9"
    )
    assert "egress of an address outside: not policed" in out
    assert "Hint: through a NodePort" in out and "not with\n192.0.2.1:" in out
    assert "allowed by rule 3 of NetworkPolicy default/knp.default.web" in out
    denied = tiered_cluster("02-kubernetes-style").ok(
        "policy", "explain", "--from", "192.0.2.7", "--to", "b", "--port", "9"
    )
    assert "DENIED" in denied


def test_a_policy_that_is_not_applied_yet(tiered_cluster, tmp_path):
    calicoctl = tiered_cluster("02-kubernetes-style")
    file = tmp_path / "deny.yaml"
    file.write_text(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny}\n"
        "spec:\n  podSelector: {}\n  policyTypes: [Egress]\n"
    )
    ask = ("policy", "explain", "--from", "a", "--to", "b", "--port", "80")
    assert calicoctl.ok(*ask).endswith("allowed.\n")
    assert "egress of default/a: DENIED at the end of tier default" in calicoctl.ok(*ask, "--with", str(file))
    assert "KubernetesNetworkPolicy default/deny (0 rules, not applied yet)" in calicoctl.ok(
        "policy", "show", "a", "--with", str(file)
    )
    assert calicoctl.ok(*ask).endswith("allowed.\n")  # nothing was stored


def test_a_file_that_may_not_be_stored_is_refused(tiered_cluster, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(
        "apiVersion: projectcalico.org/v3\nkind: NetworkPolicy\nmetadata: {name: x}\n"
        "spec: {ingress: [{action: Maybe}]}\n"
    )
    err = tiered_cluster("02-kubernetes-style").fails("policy", "show", "a", "--with", str(file))
    assert "spec.ingress[0].action" in err


def test_show_lists_tiers_in_their_order(tiered_cluster):
    out = tiered_cluster("03-tiers").ok("policy", "show", "b")
    assert out.splitlines()[0] == "default/b on n1, calib, 10.65.0.2"
    ingress = out[out.index("  ingress") : out.index("  egress")]
    named = [line.split()[-1] for line in ingress.splitlines() if line.startswith("    tier")]
    orders = tier_orders("03-tiers")
    assert named == sorted(named, key=lambda name: (orders[name], name))
    assert len(named) > 1


def test_show_all_can_be_narrowed_to_a_node(tiered_cluster):
    calicoctl = tiered_cluster("01-no-policy")
    everything, here = calicoctl.ok("policy", "show", "--all"), calicoctl.ok("policy", "show", "--all", "--node", "n1")
    assert everything.count(" on n2,") == 3 and everything.count(" on n1,") == 2
    assert here.count(" on n2,") == 0 and here.count(" on n1,") == 2
    assert "    profile kns.default (1 rule)\n    the rest: denied" in here


def test_a_missing_profile_is_named(tiered_cluster):
    calicoctl = tiered_cluster("01-no-policy")
    calicoctl.ok("delete", "profile", "kns.other")
    out = calicoctl.ok("policy", "explain", "--from", "a", "--to", "other/o1", "--port", "80")
    assert "DENIED because nothing else decides and its profile kns.other does not exist" in out
    assert "profile kns.other does not exist: everything is denied" in calicoctl.ok("policy", "show", "other/o1")


def test_a_policy_that_cannot_be_read_is_said(tiered_cluster):
    calicoctl = tiered_cluster("01-no-policy")
    document = {"kind": "GlobalNetworkPolicy", "metadata": {"name": "bad"}, "spec": {"selector": "x =="}}
    calicoctl.write({etcd_path(ResourceKey("GlobalNetworkPolicy", "bad")): document})
    result = calicoctl("policy", "show", "a")
    assert result.code == 0
    assert "GlobalNetworkPolicy bad is not in force" in result.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--from", "a", "--to", "nobody", "--port", "1"], "there is no workload default/nobody"),
        (["--from", "a", "--to", "b"], "--port must be given"),
        (["--from", "a", "--to", "b", "--port", "70000"], "from 1 to 65535"),
        (["--from", "a", "--to", "b", "--protocol", "carrier-pigeon"], "--protocol"),
        (["--from", "a", "--to", "fd00::1", "--port", "1"], "no IP family in common"),
    ],
)
def test_questions_without_an_answer(tiered_cluster, options, says):
    assert says in tiered_cluster("01-no-policy").fails("policy", "explain", *options)


def test_icmp_needs_no_port(tiered_cluster):
    out = tiered_cluster("01-no-policy").ok("policy", "explain", "--from", "a", "--to", "b", "--protocol", "icmp")
    assert out.startswith("default/a (10.65.0.1) to default/b (10.65.0.2), icmp echo request:")


def test_a_policy_over_the_budget_denies(tiered_cluster, tmp_path):
    """As on the nodes: what it would allow does not count."""
    side = {"selector": "app == 'a'", "ports": [80, "http"]}  # four alternatives
    large = {"action": "Allow", "protocol": "TCP", "source": side, "destination": side}
    spec = {"order": 1, "types": ["Ingress"], "ingress": [{"action": "Allow"}, *[large] * 10240]}
    metadata = {"name": "large", "namespace": "default"}
    file = tmp_path / "large.json"
    head = {"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy", "metadata": metadata}
    file.write_text(json.dumps({**head, "spec": spec}))
    calicoctl = tiered_cluster("02-kubernetes-style")
    ask = ("policy", "explain", "--from", "a", "--to", "b", "--port", "80", "--with", str(file))
    done = calicoctl(*ask)
    why = "DENIED by NetworkPolicy default/large, which is over the budget: it denies what it governs"
    assert f"ingress of default/b: {why}" in done.out and done.out.endswith("The connection is DENIED.\n")
    assert "Warning: NetworkPolicy default/large denies what it governs: its rules may need 1638" in done.err
    shown = calicoctl.ok("policy", "show", "b", "--with", str(file))
    assert "NetworkPolicy default/large (over the budget: denies, not applied yet)" in shown
    felix = {"apiVersion": head["apiVersion"], "kind": "FelixConfiguration", "metadata": {"name": "default"}}
    calicoctl.ok("apply", "-f", "-", stdin=json.dumps({**felix, "spec": {"policyRuleBudget": 200_000}}))
    assert calicoctl(*ask).out.endswith("The connection is allowed.\n")


def test_workloads_that_name_one_interface(calicoctl):
    """Both are shown with what they would get, and that the node decides."""
    records = {}
    for name, space in (("a", "one"), ("b", "two")):
        spec = {"orchestrator": "k8s", "node": "n1", "pod": name, "endpoint": "eth0", "interfaceName": "cali1"}
        key = ResourceKey("WorkloadEndpoint", f"n1-k8s-{name}-eth0", space)
        metadata = {"name": key.name, "namespace": space}
        records[etcd_path(key)] = {
            "kind": "WorkloadEndpoint",
            "apiVersion": "projectcalico.org/v3",
            "metadata": metadata,
            "spec": {**spec, "ipNetworks": [f"10.65.0.{len(records) + 1}/32"], "profiles": []},
        }
    calicoctl.write(records)
    out = calicoctl.ok("policy", "show", "one/a")
    assert "disputed: two/b on n1 names the same interface, cali1" in out and "the rest: denied" in out
    shown = json.loads(calicoctl.ok("policy", "show", "--all", "-o", "json"))["workloads"]
    assert ["cali1" in one["disputed"] for one in shown] == [True, True]
    done = calicoctl("policy", "explain", "--from", "one/a", "--to", "192.0.2.1", "--port", "80")
    assert "one/a: two/b on n1 names the same interface" in done.err


def containers(calicoctl, *described):
    """(node, container ID, address, labels) of each."""
    records = {}
    for node, container, address, labels in described:
        name = f"{node}-cni-{container}-eth0"
        metadata = {"name": name, "namespace": "default", "uid": "u", "creationTimestamp": "2026-11-20T12:06:00Z"}
        spec = {"orchestrator": "cni", "node": node, "endpoint": "eth0", "containerID": container}
        spec |= {"interfaceName": f"cali{container[:11]}", "ipNetworks": [f"{address}/32"]}
        kind = "WorkloadEndpoint"
        document = {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {**metadata, "labels": labels}}
        records[etcd_path(ResourceKey(kind, name, "default"))] = document | {"spec": spec}
    calicoctl.write(records)
    return calicoctl


WEB, INFRA, OTHER = "ab" * 32, "cd" * 32, "ef" * 32
CALLED = "cni-calico.io/container"


def test_containers_have_their_names(calicoctl):
    containers(
        calicoctl,
        ("n1", WEB, "10.0.0.1", {CALLED: "web"}),
        ("n1", INFRA, "10.0.0.2", {CALLED: "0123-infra", "cni-calico.io/pod": "shop"}),
        ("n2", OTHER, "10.0.0.3", {}),
    )
    listed = calicoctl.ok("get", "workloadendpoints", "-a").splitlines()
    assert [line.split()[1] for line in listed[1:] if line] == ["web", "shop", OTHER]
    for name in ("web", "default/web", WEB, WEB[:12], f"n1-cni-{WEB}-eth0"):
        assert calicoctl.ok("policy", "show", name).startswith("default/web on n1, ")
    assert calicoctl.ok("policy", "show", "shop").startswith("default/shop on n1, ")
    assert calicoctl.ok("policy", "show", OTHER[:12]).startswith(f"default/{OTHER} on n2, ")
    said = calicoctl.ok("policy", "explain", "--from", "web", "--to", "shop", "--port", "80")
    assert said.startswith("default/web (10.0.0.1) to default/shop (10.0.0.2), tcp/80:")


def test_a_container_of_docker_is_found_without_its_namespace(calicoctl):
    """One of another runtime with the same name comes first; it is in the namespace that is meant without one."""
    name, metadata = "n1-libnetwork-libnetwork-ab12", {"namespace": "libnetwork", "uid": "u", "labels": {CALLED: "web"}}
    spec = {"orchestrator": "libnetwork", "workload": "libnetwork", "node": "n1", "endpoint": "ab12"}
    spec |= {"containerID": WEB, "interfaceName": "caliab12", "ipNetworks": ["10.0.0.1/32"]}
    document = {"apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint", "spec": spec}
    document["metadata"] = {"name": name, "creationTimestamp": "2026-11-20T12:06:00Z", **metadata}
    calicoctl.write({etcd_path(ResourceKey("WorkloadEndpoint", name, "libnetwork")): document})
    for asked in ("web", "libnetwork/web", WEB[:12]):
        assert calicoctl.ok("policy", "show", asked).startswith("libnetwork/web on n1, caliab12")
    assert "there is no workload default/web" in calicoctl.fails("policy", "show", "default/web")
    containers(calicoctl, ("n2", OTHER, "10.0.0.3", {CALLED: "web"}))
    assert calicoctl.ok("policy", "show", "web").startswith("default/web on n2, ")


def test_two_containers_of_one_name_are_listed(calicoctl):
    containers(calicoctl, ("n1", WEB, "10.0.0.1", {CALLED: "web"}), ("n2", OTHER, "10.0.0.3", {CALLED: "web"}))
    refused = calicoctl.fails("policy", "show", "web")
    assert f"several containers are called default/web; name one of {WEB[:12]} on n1; {OTHER[:12]} on n2" in refused
    assert calicoctl.ok("policy", "show", OTHER[:12]).startswith("default/web on n2, ")


def test_a_pod_cannot_take_a_containers_name(calicoctl):
    """Its owner chooses its labels."""
    containers(calicoctl, ("n1", WEB, "10.0.0.1", {CALLED: "web"}))
    name = "n1-k8s-evil-eth0"
    metadata = {"name": name, "namespace": "default", "uid": "u", "creationTimestamp": "2026-11-20T12:06:00Z"}
    spec = {"orchestrator": "k8s", "node": "n1", "endpoint": "eth0", "containerID": "c2", "pod": "evil"}
    spec |= {"interfaceName": "cali2", "ipNetworks": ["10.0.0.9/32"]}
    document = {"apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint", "metadata": metadata, "spec": spec}
    document["metadata"]["labels"] = {CALLED: "web"}
    calicoctl.write({etcd_path(ResourceKey("WorkloadEndpoint", name, "default")): document})
    assert calicoctl.ok("policy", "show", "web").startswith("default/web on n1, cali" + WEB[:11])


def test_a_port_at_a_name_that_is_no_hosts(calicoctl):
    """A container's own port is asked for in another way; a host without an address in its record by one of them."""
    containers(calicoctl, ("n1", WEB, "10.0.0.1", {CALLED: "web"}))
    calicoctl.write(stored("Node", "n1", {}))
    refused = calicoctl.fails("policy", "explain", "--from", "192.0.2.9", "--to", "web:80")
    assert "web is no address, and there is no node web" in refused and "--to WORKLOAD --port 80" in refused
    refused = calicoctl.fails("policy", "explain", "--from", "192.0.2.9", "--to", "n1:80")
    assert "the record of node n1 has no address" in refused and "one of that host's addresses" in refused
