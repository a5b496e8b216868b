"""``calicoctl policy`` about hosts: to them, from them, through them; the records are upstream's vectors."""

import json

NAMED, WILDCARD = "06-host-endpoint-named", "07-host-endpoint-wildcard"


def explain(calicoctl, source, destination, port, *more):
    return calicoctl.ok("policy", "explain", "--from", source, "--to", destination, "--port", str(port), *more)


def test_to_a_host(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    allowed = explain(calicoctl, "192.0.2.1", "172.31.0.1", 80)
    assert "to host n1 (172.31.0.1), tcp/80:" in allowed and allowed.endswith("The connection is allowed.\n")
    assert "ingress of HostEndpoint h0 (the host itself): allowed by rule 1 of GlobalNetworkPolicy host-in" in allowed
    failsafe = explain(calicoctl, "192.0.2.1", "hostendpoint:h0", 22)
    assert "ingress of HostEndpoint h0 (the host itself): allowed, it is a failsafe port" in failsafe
    closed = explain(calicoctl, "192.0.2.1", "172.30.0.1", 80)  # the other one has no policy
    assert "HostEndpoint h1 (the host itself): DENIED because no policy and no profile allows it" in closed
    assert closed.endswith("The connection is DENIED.\n")


def test_other_failsafe_ports_count(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    spec = {"failsafeInboundHostPorts": [{"protocol": "tcp", "port": 2222, "net": "192.0.2.0/24"}]}
    document = {"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "default"}}
    calicoctl.ok("apply", "-f", "-", stdin=json.dumps({**document, "spec": spec}))
    assert "DENIED" in explain(calicoctl, "192.0.2.1", "172.30.0.1", 22)
    assert "failsafe" in explain(calicoctl, "192.0.2.1", "172.30.0.1", 2222)
    assert "DENIED" in explain(calicoctl, "198.51.100.1", "172.30.0.1", 2222)


def test_from_a_host(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    assert "The connection is allowed." in explain(calicoctl, "172.31.0.1", "192.0.2.1", 80, "--protocol", "udp")
    denied = explain(calicoctl, "172.31.0.1", "192.0.2.1", 80)
    assert "egress of HostEndpoint h0 (the host itself): DENIED at the end of tier default" in denied
    assert "HostEndpoint" not in explain(calicoctl, "172.31.0.1", "a", 80)  # its own workload is never policed


def test_through_a_host(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    denied = explain(calicoctl, "192.0.2.1", "a", 25)
    assert "ingress of HostEndpoint h0 (forwarded): DENIED by rule 1 of GlobalNetworkPolicy forwarded" in denied
    assert "ingress of default/a: allowed" in denied
    assert "The connection is DENIED." in denied
    assert "The connection is allowed." in explain(calicoctl, "192.0.2.1", "a", 22)


def test_before_translation(tiered_cluster):
    calicoctl = tiered_cluster(WILDCARD)
    denied = explain(calicoctl, "192.0.2.1", "172.31.0.1", 30080)
    assert "ingress of HostEndpoint all (preDNAT): DENIED by rule 1 of GlobalNetworkPolicy nodeports" in denied
    found = json.loads(explain(calicoctl, "192.0.2.1", "172.31.0.1", 30080, "-o", "json"))
    (host,) = found["hosts"]
    assert not found["allowed"] and not host["allowed"]
    assert (host["hostEndpoint"], host["stage"], host["direction"]) == ("all", "beforeNat", "ingress")
    assert "The connection is allowed." in explain(calicoctl, "192.0.2.1", "172.31.0.1", 9000)


def test_show(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    out = calicoctl.ok("policy", "show", "hostendpoint:h0")
    assert out.splitlines()[0] == "HostEndpoint h0 on n1, eth0"
    assert (
        "  ingress of what is forwarded (applyOnForward)\n    tier default\n      1. GlobalNetworkPolicy forwarded"
        in out
    )
    assert "1. GlobalNetworkPolicy host-in (1 rule)" in out and "preDNAT" not in out
    everything = json.loads(calicoctl.ok("policy", "show", "--all", "--node", "n1", "-o", "json"))
    assert [host["name"] for host in everything["hostEndpoints"]] == ["h0", "h1"]
    assert "there is no valid HostEndpoint nobody" in calicoctl.fails("policy", "show", "hostendpoint:nobody")
