"""``calicoctl policy`` about hosts: to them, from them, through them; the records are upstream's vectors."""

import json

from cni_calico.model.keys import ResourceKey, etcd_path

NAMED, WILDCARD, UNTRACKED = "06-host-endpoint-named", "07-host-endpoint-wildcard", "08-do-not-track"


def explain(calicoctl, source, destination, port, *more):
    return calicoctl.ok("policy", "explain", "--from", source, "--to", destination, "--port", str(port), *more)


def put(calicoctl, kind, name, spec):
    document = {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}, "spec": spec}
    calicoctl.ok("apply", "-f", "-", stdin=json.dumps(document))


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


def test_to_a_host_whose_address_only_its_node_says(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    open_host = explain(calicoctl, "192.0.2.1", "172.31.0.2", 80)
    assert "to host n2 (172.31.0.2), tcp/80:" in open_host
    assert "ingress of host n2: not policed, it passes no host endpoint there" in open_host
    assert "The connection is allowed." in open_host
    put(calicoctl, "HostEndpoint", "h2", {"node": "n2", "interfaceName": "eth0"})
    for destination in ("172.31.0.2", "hostendpoint:h2"):
        closed = explain(calicoctl, "192.0.2.1", destination, 80)
        assert "ingress of HostEndpoint h2 (the host itself): DENIED because no policy and no profile" in closed
    put(calicoctl, "HostEndpoint", "h9", {"node": "n9", "interfaceName": "eth0"})
    ask = ("policy", "explain", "--from", "192.0.2.1", "--to", "hostendpoint:h9", "--port", "80")
    assert "HostEndpoint h9 has no expectedIPs and its Node no address" in calicoctl.fails(*ask)


def put_router(calicoctl, **annotations):
    tor = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "BGPPeer",
        "metadata": {"name": "tor", "annotations": annotations},
        "spec": {"peerIP": "172.31.0.254", "asNumber": 65000},
    }
    return calicoctl("apply", "-f", "-", stdin=json.dumps(tor)).err


def test_sessions_that_a_host_endpoint_cuts(tiered_cluster):
    """Said by whatever is written, before it is written with --dry-run, and by explain; not about failsafe ports."""
    calicoctl = tiered_cluster(NAMED)
    bfd = {"cni-calico.io/bfd": "true"}

    def rules(action):
        rule = [{"action": action, "protocol": protocol} for protocol in ("UDP", "TCP")]
        spec = {"selector": "all()", "order": 0, "types": ["Ingress", "Egress"], "ingress": rule, "egress": rule}
        policy = {"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "first"}}
        return calicoctl("apply", "-f", "-", stdin=json.dumps({**policy, "spec": spec})).err

    assert "cuts" not in put_router(calicoctl) + rules("Deny")
    said = put_router(calicoctl, **bfd)
    for way in ("off for", "from"):
        assert f"Warning: HostEndpoint h0 cuts node n1 {way} BFD with 172.31.0.254 (UDP " in said
    listen = {"apiVersion": "projectcalico.org/v3", "kind": "BGPConfiguration", "metadata": {"name": "default"}}
    listen["spec"] = {"listenPort": 1790}
    text = calicoctl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(listen)).err
    assert "cuts node n1" in text and "BGP with 172.31.0.2 (TCP 1790)" in text
    asked = ("policy", "explain", "--from", "192.0.2.1", "--to", "172.31.0.1", "--port", "80")
    assert "cuts node n1 off for BFD" in calicoctl(*asked).err
    assert "cuts" not in rules("Allow")
    assert "cuts" not in calicoctl(*asked).err


def test_a_host_endpoint_of_no_node_is_told(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    host = {"apiVersion": "projectcalico.org/v3", "kind": "HostEndpoint", "metadata": {"name": "h7"}}
    for name, meant in (("n11", "did you mean n1?"), ("rack-7", "'calicoctl get nodes' lists")):
        host["spec"] = {"node": name, "interfaceName": "eth0"}
        done = calicoctl("apply", "-f", "-", stdin=json.dumps(host))
        assert done.code == 0 and f"HostEndpoint(h7) has no effect: there is no node {name}; {meant}" in done.err
    host["spec"]["node"] = "n2"
    assert "no node" not in calicoctl("apply", "-f", "-", stdin=json.dumps(host)).err


def test_host_endpoints_of_one_interface(tiered_cluster):
    """The agent takes the one with the smallest name, and none whose interface is excluded."""
    calicoctl = tiered_cluster(NAMED)
    put(calicoctl, "HostEndpoint", "a0", {"node": "n1", "interfaceName": "eth0", "profiles": ["missing"]})
    denied = explain(calicoctl, "192.0.2.1", "172.31.0.1", 80)
    assert "HostEndpoint a0 (the host itself): DENIED because no policy and no profile allows it (profile mis" in denied
    overruled = "  not in force: HostEndpoint a0 names the same, and comes first by its name\n"
    assert overruled in calicoctl.ok("policy", "show", "hostendpoint:h0")
    assert overruled not in calicoctl.ok("policy", "show", "hostendpoint:a0")
    shown = json.loads(calicoctl.ok("policy", "show", "--all", "-o", "json"))["hostEndpoints"]
    assert {one["name"]: one.get("overruledBy") for one in shown} == {"a0": None, "h0": "a0", "h1": None}
    put(calicoctl, "FelixConfiguration", "node.n1", {"interfaceExclude": "kube-ipvs0,/^eth0$/"})
    assert "passes no host endpoint" in explain(calicoctl, "192.0.2.1", "172.31.0.1", 80)
    assert "HostEndpoint h1 (the host itself): DENIED" in explain(calicoctl, "192.0.2.1", "172.30.0.1", 80)


def test_other_failsafe_ports_count(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    ports = [{"protocol": "tcp", "port": 2222, "net": "192.0.2.0/24"}]
    put(calicoctl, "FelixConfiguration", "default", {"failsafeInboundHostPorts": ports})
    assert "DENIED" in explain(calicoctl, "192.0.2.1", "172.30.0.1", 22)
    assert "failsafe" in explain(calicoctl, "192.0.2.1", "172.30.0.1", 2222)
    assert "DENIED" in explain(calicoctl, "198.51.100.1", "172.30.0.1", 2222)


def test_from_a_host(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    assert "The connection is allowed." in explain(calicoctl, "172.31.0.1", "192.0.2.1", 80, "--protocol", "udp")
    denied = explain(calicoctl, "172.31.0.1", "192.0.2.1", 80)
    assert "egress of HostEndpoint h0 (the host itself): DENIED at the end of tier default" in denied
    assert "HostEndpoint" not in explain(calicoctl, "172.31.0.1", "a", 80)  # its own workload is never policed


def test_from_a_workload_to_its_own_host(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    own = explain(calicoctl, "a", "172.31.0.1", 25)
    assert "HostEndpoint h0" not in own and "DefaultEndpointToHostAction decides" in own
    other = explain(calicoctl, "r1", "172.31.0.1", 25)
    assert "ingress of HostEndpoint h0 (the host itself): DENIED" in other and "DefaultEndpoint" not in other
    assert "if the pool of 10.65.1.1 has natOutgoing, the connection arrives with an address of node n2:" in other


def test_from_a_host_to_itself(tiered_cluster):
    """Through the loopback interface, which a host endpoint for all interfaces has, too."""
    calicoctl = tiered_cluster(NAMED)
    assert "HostEndpoint" not in explain(calicoctl, "172.31.0.1", "172.31.0.1", 9000)
    calicoctl = tiered_cluster(WILDCARD)
    rules = [{"action": "Allow", "protocol": "TCP", "destination": {"nets": ["127.0.0.0/8"]}}]
    put(calicoctl, "GlobalNetworkPolicy", "in", {"selector": "has(host)", "types": ["Ingress"], "ingress": rules})
    own = explain(calicoctl, "172.31.0.1", "172.31.0.1", 9000)
    assert "egress of HostEndpoint all (the host itself): allowed by rule 1 of Profile projectcalico-defau" in own
    assert "ingress of HostEndpoint all (the host itself): DENIED at the end of tier default" in own
    loop = explain(calicoctl, "hostendpoint:all", "127.0.0.1", 9000)
    assert "host n1 (127.0.0.1) to host n1 (127.0.0.1)" in loop
    assert "ingress of HostEndpoint all (the host itself): allowed by rule 1 of GlobalNetworkPolicy in" in loop
    ask = ("policy", "explain", "--from", "127.0.0.1", "--to", "b", "--port", "80")
    assert "every host has 127.0.0.1: name the host at the other end (hostendpoint:NAME)" in calicoctl.fails(*ask)


def test_through_a_host(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    denied = explain(calicoctl, "192.0.2.1", "a", 25)
    assert "ingress of HostEndpoint h0 (forwarded): DENIED by rule 1 of GlobalNetworkPolicy forwarded" in denied
    assert "ingress of default/a: allowed" in denied
    assert "The connection is DENIED." in denied
    assert "The connection is allowed." in explain(calicoctl, "192.0.2.1", "a", 22)


def test_from_host_to_host(tiered_cluster):
    """Each node has failsafe ports of its own."""
    calicoctl = tiered_cluster(NAMED)
    put(calicoctl, "HostEndpoint", "h2", {"node": "n2", "interfaceName": "eth0", "expectedIPs": ["172.31.0.2"]})
    allowed = explain(calicoctl, "172.31.0.1", "172.31.0.2", 179)
    assert "The connection is allowed." in allowed
    for way in ("egress of HostEndpoint h0", "ingress of HostEndpoint h2"):
        assert f"{way} (the host itself): allowed, it is a failsafe port" in allowed
    put(calicoctl, "FelixConfiguration", "node.n1", {"failsafeOutboundHostPorts": []})
    denied = explain(calicoctl, "172.31.0.1", "172.31.0.2", 179)
    assert "egress of HostEndpoint h0 (the host itself): DENIED at the end of tier default" in denied
    assert "ingress of HostEndpoint h2 (the host itself): allowed, it is a failsafe port" in denied
    assert "The connection is DENIED." in denied


def test_tunnel_packets_between_hosts(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    always = "Hint: where pools use VXLAN or IPIP, its packets between nodes always pass"
    ipip = explain(calicoctl, "172.31.0.1", "172.31.0.2", 1, "--protocol", "4")
    assert "egress of HostEndpoint h0 (the host itself): DENIED" in ipip and always in ipip
    assert always in explain(calicoctl, "172.31.0.2", "172.31.0.1", 4789, "--protocol", "udp")
    assert "Hint" not in explain(calicoctl, "172.31.0.2", "172.31.0.1", 4788, "--protocol", "udp")


def test_between_workloads_of_two_hosts(tiered_cluster):
    """Through the hosts' own network, unless the pool sends everything through a tunnel."""
    calicoctl = tiered_cluster(NAMED)
    pool = {"cidr": "10.65.0.0/16", "natOutgoing": True}
    forwarded = "ingress of HostEndpoint h0 (forwarded): DENIED by rule 1 of GlobalNetworkPolicy forwarded"
    for mode in ("Never", "CrossSubnet"):
        put(calicoctl, "IPPool", "pool", {**pool, "vxlanMode": mode})
        assert forwarded in explain(calicoctl, "r1", "a", 25)
    put(calicoctl, "IPPool", "pool", {**pool, "vxlanMode": "Always"})
    through = explain(calicoctl, "r1", "a", 25)
    assert "HostEndpoint" not in through and "The connection is allowed." in through
    assert forwarded in explain(calicoctl, "192.0.2.1", "a", 25)  # from outside there is no tunnel
    put(calicoctl, "HostEndpoint", "a-tunnel", {"node": "n1", "interfaceName": "vxlan.calico"})
    deny = {"applyOnForward": True, "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
    put(calicoctl, "GlobalNetworkPolicy", "all-hosts", {**deny, "selector": "!has(hep) && !has(app)", "order": 1})
    through = explain(calicoctl, "r1", "a", 25)
    assert "ingress of HostEndpoint a-tunnel (forwarded): DENIED by rule 1 of GlobalNetworkPolicy all-hosts" in through
    assert forwarded in explain(calicoctl, "192.0.2.1", "a", 25)


def test_everywhere_means_tunnels_and_workloads(tiered_cluster):
    calicoctl = tiered_cluster(WILDCARD)
    put(calicoctl, "IPPool", "pool", {"cidr": "10.65.0.0/16", "ipipMode": "Always"})
    deny = {"selector": "has(host)", "order": 1, "applyOnForward": True, "types": ["Ingress"]}
    put(calicoctl, "GlobalNetworkPolicy", "forwarded", {**deny, "ingress": [{"action": "Deny"}]})
    for source, destination in (("r1", "a"), ("a", "b"), ("a", "r1")):
        assert "ingress of HostEndpoint all (forwarded): DENIED" in explain(calicoctl, source, destination, 25)


def test_what_is_not_tracked(tiered_cluster):
    calicoctl = tiered_cluster(UNTRACKED)

    def udp(source, destination, port, *more):
        return explain(calicoctl, source, destination, port, "--protocol", "udp", *more)

    outside, host = "192.0.2.1", "172.31.0.1"
    allowed = udp(outside, host, 53)
    assert "ingress of HostEndpoint h0 (doNotTrack): allowed by rule 1 of GlobalNetworkPolicy untracked" in allowed
    assert "the host itself" not in allowed and "The connection is allowed." in allowed
    assert "Hint: a doNotTrack policy allows it, so its answers need a rule of their own" in allowed
    assert "ingress of HostEndpoint h0 (doNotTrack): DENIED by rule 2" in udp(outside, host, 123)
    assert "(the host itself): DENIED because no policy and no profile allows it" in udp(outside, host, 124)
    assert "ingress of HostEndpoint h0 (doNotTrack): DENIED by rule 2" in udp(outside, "a", 123)  # forwarded, too
    deny = {"action": "Deny", "protocol": "TCP"}
    early = {"selector": "hep == 'h0'", "doNotTrack": True, "applyOnForward": True, "types": ["Egress"]}
    put(calicoctl, "GlobalNetworkPolicy", "no-tcp", {**early, "egress": [deny]})
    assert "(doNotTrack): DENIED" in explain(calicoctl, host, outside, 4000)
    assert "doNotTrack" not in explain(calicoctl, host, outside, 4000, "--source-port", "22")  # answers of SSH
    answer = udp(host, outside, 4000, "--source-port", "53")
    assert "egress of HostEndpoint h0 (doNotTrack): allowed by rule 1" in answer


def test_before_translation(tiered_cluster):
    calicoctl = tiered_cluster(WILDCARD)
    own = explain(calicoctl, "a", "172.31.0.1", 30080)  # before it is known that it is for the host itself
    assert "ingress of HostEndpoint all (preDNAT): DENIED by rule 1 of GlobalNetworkPolicy nodeports" in own
    denied = explain(calicoctl, "192.0.2.1", "172.31.0.1", 30080)
    assert "ingress of HostEndpoint all (preDNAT): DENIED by rule 1 of GlobalNetworkPolicy nodeports" in denied
    found = json.loads(explain(calicoctl, "192.0.2.1", "172.31.0.1", 30080, "-o", "json"))
    (host,) = found["hosts"]
    assert not found["allowed"] and not host["allowed"]
    assert (host["hostEndpoint"], host["stage"], host["direction"]) == ("all", "beforeNat", "ingress")
    assert "Hint: if 30080 is a NodePort, only doNotTrack and preDNAT policies see it." in denied
    other = explain(calicoctl, "192.0.2.1", "172.31.0.1", 9000)
    assert "The connection is allowed." in other and "Hint" not in other


def test_before_translation_everywhere_counts_where_the_own_host_endpoint_has_no_such_policy(tiered_cluster):
    calicoctl = tiered_cluster(NAMED)
    put(calicoctl, "HostEndpoint", "all", {"node": "n1", "interfaceName": "*"})
    own = {"selector": "hep == 'h0'", "order": 1, "types": ["Ingress"], "ingress": [{"action": "Allow"}]}
    put(calicoctl, "GlobalNetworkPolicy", "own", own)
    assert "The connection is allowed." in explain(calicoctl, "192.0.2.1", "172.31.0.1", 30080)
    deny = [{"action": "Deny", "protocol": "TCP", "destination": {"ports": [30080]}}]
    early = {"order": 2, "preDNAT": True, "applyOnForward": True, "types": ["Ingress"]}
    put(calicoctl, "GlobalNetworkPolicy", "nodeports", {**early, "selector": "!has(hep)", "ingress": deny})
    denied = explain(calicoctl, "192.0.2.1", "172.31.0.1", 30080)
    assert "ingress of HostEndpoint all (preDNAT): DENIED by rule 1 of GlobalNetworkPolicy nodeports" in denied
    assert "The connection is DENIED." in denied
    shown = calicoctl.ok("policy", "show", "hostendpoint:h0")
    assert "ingress, before addresses are translated (preDNAT), of HostEndpoint all\n    tier default\n" in shown
    (described,) = json.loads(calicoctl.ok("policy", "show", "hostendpoint:h0", "-o", "json"))["hostEndpoints"]
    [tier] = described["ingress"]["beforeNat"]
    assert tier["policies"] == ["GlobalNetworkPolicy nodeports"]
    forwarded = explain(calicoctl, "192.0.2.1", "a", 30080)
    assert "ingress of HostEndpoint all (preDNAT): DENIED by rule 1 of GlobalNetworkPolicy nodeports" in forwarded
    allow = [{"action": "Allow", "protocol": "TCP"}]
    put(calicoctl, "GlobalNetworkPolicy", "own-early", {**early, "selector": "hep == 'h0'", "ingress": allow})
    allowed = explain(calicoctl, "192.0.2.1", "172.31.0.1", 30080)
    assert "ingress of HostEndpoint h0 (preDNAT): allowed by rule 1 of GlobalNetworkPolicy own-early" in allowed
    assert "HostEndpoint all" not in allowed and "The connection is allowed." in allowed
    assert "HostEndpoint all" not in calicoctl.ok("policy", "show", "hostendpoint:h0")


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
    assert "there is no HostEndpoint nobody" in calicoctl.fails("policy", "show", "hostendpoint:nobody")
    document = {"kind": "HostEndpoint", "metadata": {"name": "bad"}, "spec": {"node": "n1"}}
    calicoctl.write({etcd_path(ResourceKey("HostEndpoint", "bad")): document})  # as kubectl can
    wrong = "HostEndpoint bad is not valid: spec.interfaceName: expected an interface, or expectedIPs"
    assert wrong in calicoctl.fails("policy", "show", "hostendpoint:bad")


def test_many_nodes_are_summed_up(calicoctl):
    """The ones whose host endpoints were written come first."""
    for i in range(25):
        node = {"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": f"n{i:02}"}}
        calicoctl.apply({**node, "spec": {"bgp": {"ipv4Address": f"172.31.0.{i + 1}/24"}}})
    put_router(calicoctl, **{"cni-calico.io/bfd": "true"})
    for i in range(25):
        put(calicoctl, "HostEndpoint", f"h{i:02}", {"node": f"n{i:02}", "interfaceName": "*"})
    host = {"apiVersion": "projectcalico.org/v3", "kind": "HostEndpoint", "metadata": {"name": "h24"}}
    said = calicoctl("apply", "-f", "-", stdin=json.dumps({**host, "spec": {"node": "n24", "interfaceName": "*"}})).err
    lines = said.splitlines()
    assert len(lines) == 7 and "HostEndpoint h24 cuts node n24" in lines[0]
    assert lines[-1] == "Warning: and 34 sessions more are cut; the status of each node has its own"
