"""Network policy evaluated naively, from its definition alone: the oracle of the calculation and of verdict tests.

Shares nothing with the product but the selector language, which has an oracle of its own.
``documents``: (kind, namespace, name) -> the stored document.
"""

import json
from ipaddress import ip_address, ip_network

from cni_calico.model.selectors import parse_selector

KUBE_LABELS = "projectcalico.org/kube-labels"
NS, ORCHESTRATOR, ACCOUNT = (f"projectcalico.org/{name}" for name in ("namespace", "orchestrator", "serviceaccount"))
POLICIES = ("NetworkPolicy", "GlobalNetworkPolicy", "KubernetesNetworkPolicy", "KubernetesClusterNetworkPolicy")
NUMBERS = {"TCP": 6, "UDP": 17, "SCTP": 132, "ICMP": 1, "ICMPv6": 58, "UDPLite": 136}
INFINITE = float("inf")


def number(protocol):
    return NUMBERS[protocol] if protocol in NUMBERS else int(protocol)


class Naive:
    def __init__(self, documents):
        self.documents = documents
        self.decided_at = -1
        self.decided_by = ("", "", ""), -1  # (policy's key, index of its rule or -1) of the last verdict

    def kind(self, *kinds):
        return [(key, doc) for key, doc in self.documents.items() if key[0] in kinds]

    # -- who is who ---------------------------------------------------------------------------------------------------

    def labels(self, key):
        kind, namespace, _ = key
        document = self.documents[key]
        own, spec = dict(document["metadata"].get("labels", {})), document["spec"]
        profiles = spec.get("profiles", [])
        if kind == "WorkloadEndpoint":
            own = {k: v for k, v in own.items() if k[:5] not in ("pcns.", "pcsa.")}
            given = {NS: namespace, ORCHESTRATOR: spec.get("orchestrator"), ACCOUNT: spec.get("serviceAccountName")}
            own |= {k: v for k, v in given.items() if v}
        if kind == "NetworkSet":
            own = {k: v for k, v in own.items() if k[:5] not in ("pcns.", "pcsa.") and k not in (ORCHESTRATOR, ACCOUNT)}
            own, profiles = own | {NS: namespace}, [f"kns.{namespace}"]
        for name in profiles:
            profile = self.documents.get(("Profile", "", name), {"spec": {}})
            own = profile["spec"].get("labelsToApply", {}) | own
        return own

    def things(self):
        """(labels, networks, named ports) of all that a selector can select."""
        for key, document in self.documents.items():
            spec, kind = document["spec"], key[0]
            if kind == "WorkloadEndpoint" and spec.get("interfaceName"):
                yield self.labels(key), spec.get("ipNetworks", []), spec.get("ports", [])
            elif kind == "HostEndpoint":
                yield self.labels(key), spec.get("expectedIPs", []), spec.get("ports", [])
            elif kind in ("NetworkSet", "GlobalNetworkSet"):
                yield self.labels(key), spec.get("nets", []), []

    def has_address(self, address, test):
        return any(test(labels) and inside(address, nets) for labels, nets, _ in self.things())

    def has_port(self, address, protocol, port, name, only, test):
        wanted = [number(only)] if only else [6, 17, 132]
        return protocol in wanted and any(
            test(labels)
            and address in [ip_network(net)[0] for net in nets if is_single(net)]
            and (name, protocol, port) in [(p["name"], number(p["protocol"]), p["port"]) for p in ports]
            for labels, nets, ports in self.things()
        )

    # -- rules --------------------------------------------------------------------------------------------------------

    def peer_test(self, peer, namespace):
        """A test of labels, or None where the peer asks for none."""
        accounts = peer.get("serviceAccounts", {})
        given = [f for f in ("selector", "notSelector", "namespaceSelector") if peer.get(f)]
        named = accounts.get("names") or accounts.get("selector")
        tests = []
        if accounts.get("names"):
            tests.append(lambda labels: labels.get(ACCOUNT) in accounts["names"])
        if accounts.get("selector"):
            tests.append(lambda labels: parse_selector(accounts["selector"]).matches(stripped(labels, "pcsa.")))
        if peer.get("selector"):
            tests.append(parse_selector(peer["selector"]).matches)
        if peer.get("namespaceSelector"):
            tests.append(lambda labels: in_namespaces(peer["namespaceSelector"], labels, NS, "pcns."))
        elif namespace and (given or named):
            tests.append(lambda labels: labels.get(NS) == namespace)
        if tests and peer.get("notSelector"):  # of the same endpoint: another one may have the address, too
            tests.append(lambda labels: not parse_selector(peer["notSelector"]).matches(labels))
        return (lambda labels: all(test(labels) for test in tests)) if tests else None

    def side_matches(self, peer, namespace, protocol, packet, which):
        address, port = packet[which], packet["sport" if which == "source" else "dport"]
        test = self.peer_test(peer, namespace)

        def in_ports(listed):
            for item in map(str, listed):
                low, _, high = item.partition(":")
                if low.isdigit():
                    if packet["protocol"] in (6, 17, 132) and int(low) <= port <= int(high or low):
                        return True
                elif self.has_port(address, packet["protocol"], port, item, protocol, test or (lambda labels: True)):
                    return True
            return False

        if peer.get("ports") and not in_ports(peer["ports"]):
            return False
        if in_ports(peer.get("notPorts", [])) or (peer.get("nets") and not inside(address, peer["nets"])):
            return False
        if inside(address, peer.get("notNets", [])) or (test and not self.has_address(address, test)):
            return False
        excluded = peer.get("notSelector")
        if excluded and not test and self.has_address(address, parse_selector(excluded).matches):
            return False
        if peer.get("nodeSelector") and not any(
            parse_selector(peer["nodeSelector"]).matches(json.loads(doc["metadata"]["annotations"][KUBE_LABELS]))
            and str(address)
            in [a["address"] for a in doc["spec"]["addresses"] if a["type"] in ("InternalIP", "ExternalIP")]
            for _, doc in self.kind("Node")
        ):
            return False
        service = peer.get("services")
        if service:
            slices = [
                doc["spec"]
                for key, doc in self.kind("EndpointSlice")
                if (key[1], doc["spec"]["service"]) == (service.get("namespace") or namespace, service["name"])
            ]
            if which == "source":
                return any(str(address) in one["addresses"] for one in slices)
            triple = (packet["protocol"], port)
            return any(str(address) in one["addresses"] and triple in one["ports"] for one in slices)
        return True

    def rule_matches(self, rule, namespace, packet):
        family, protocol = packet["source"].version, rule.get("protocol")
        if rule.get("ipVersion", family) != family or {"ICMP": 4, "ICMPv6": 6}.get(protocol, family) != family:
            return False
        for peer in (rule.get("source", {}), rule.get("destination", {})):
            for nets in (peer.get("nets"), peer.get("notNets")):
                if nets and not any(ip_network(net).version == family for net in nets):
                    return False
            if {"0.0.0.0/0", "::/0"} & {n for n in peer.get("notNets", []) if ip_network(n).version == family}:
                return False
        if protocol is not None and number(protocol) != packet["protocol"]:
            return False
        if rule.get("notProtocol") is not None and number(rule["notProtocol"]) == packet["protocol"]:
            return False
        for field, wanted in (("icmp", True), ("notICMP", False)):
            icmp = rule.get(field)
            if icmp and "type" in icmp:
                same = packet["icmp"][0] == icmp["type"] and icmp.get("code", packet["icmp"][1]) == packet["icmp"][1]
                if same is not wanted:
                    return False
        return all(
            self.side_matches(rule.get(which, {}), namespace, protocol, packet, which)
            for which in ("source", "destination")
        )

    def first_action(self, rules, namespace, packet):
        for index, rule in enumerate(rules):
            if rule["action"] != "Log" and self.rule_matches(rule, namespace, packet):
                self.decided_at = index
                return rule["action"]
        return None

    # -- verdict ------------------------------------------------------------------------------------------------------

    def applies(self, key, spec, labels):
        selector, accounts, spaces = (
            spec.get(field) or "" for field in ("selector", "serviceAccountSelector", "namespaceSelector")
        )
        if key[1]:  # of a namespace: every all() means all of it
            about_accounts = not accounts or parse_selector(accounts).matches(stripped(labels, "pcsa."))
            return parse_selector(selector).matches(labels) and labels.get(NS) == key[1] and about_accounts
        marker = NS if spaces else ACCOUNT if accounts else ""
        if selector and marker:
            selector = selector.replace("all()", f"has({marker})")
        return (
            parse_selector(selector).matches(labels)
            and (not spaces or in_namespaces(spaces, labels, NS, "pcns."))
            and (not accounts or in_namespaces(accounts, labels, ACCOUNT, "pcsa."))
        )

    def verdict(self, key, direction, packet):
        """Whether the endpoint lets a packet in ("ingress") or out ("egress")."""
        action = self.tiers_action(key, ("own", "forward"), direction, packet)
        return self.profiles_action(key, direction, packet) if action is None else action == "Allow"

    def host_verdict(self, key, stage, direction, packet):
        """The same of a host endpoint in one stage: "raw", "beforeNat", "forward" or "own"; None: it goes on."""
        if stage == "own":
            return self.verdict(key, direction, packet)
        action = self.tiers_action(key, (stage,), direction, packet, ends=stage == "forward")
        return None if action is None else action == "Allow"

    def has_policies(self, key, stage):
        """Whether any policy of a stage applies to a host endpoint."""
        labels = self.labels(key)
        return any(
            stage_of(policy, document["spec"]) == stage and self.applies(policy, document["spec"], labels)
            for policy, document in self.kind(*POLICIES)
        )

    def tiers_action(self, key, stages, direction, packet, ends=True):
        labels, by_tier = self.labels(key), {}
        for policy, document in self.kind(*POLICIES):
            spec = document["spec"]
            types = spec.get("types") or ["Ingress", "Egress"]
            if (
                direction.capitalize() in types
                and stage_of(policy, spec) in stages
                and self.applies(policy, spec, labels)
            ):
                rank = (spec.get("order", INFINITE), f"{policy[2]}/{policy[1]}/{policy[0]}")
                by_tier.setdefault(spec.get("tier", "default"), []).append((rank, policy, spec.get(direction, [])))
        tiers = {key[2]: document["spec"] for key, document in self.kind("Tier")}
        order = sorted(by_tier, key=lambda name: (name not in tiers, tiers.get(name, {}).get("order", INFINITE), name))
        for name in order:
            action = None
            for _, policy, rules in sorted(by_tier[name], key=lambda policy: policy[0]):
                if not action:
                    action = self.first_action(rules, policy[1], packet)
                    self.decided_by = policy, self.decided_at
            if action in ("Allow", "Deny"):
                return action
            if ends and action is None and tiers.get(name, {}).get("defaultAction") != "Pass":
                self.decided_by = self.decided_by[0], -1
                return "Deny"
        return None

    def profiles_action(self, key, direction, packet):
        self.decided_by = ("Profile", "", ""), -1
        for name in self.documents[key]["spec"].get("profiles", []):
            if ("Profile", "", name) not in self.documents:
                return False
            spec = self.documents["Profile", "", name]["spec"]
            action = self.first_action(spec.get(direction, []), "", packet)
            if action in ("Allow", "Deny"):
                self.decided_by = ("Profile", "", name), self.decided_at
                return action == "Allow"
        return False


def stage_of(policy, spec):
    if policy[0] != "GlobalNetworkPolicy":
        return "own"
    if spec.get("doNotTrack"):
        return "raw"
    return "beforeNat" if spec.get("preDNAT") else "forward" if spec.get("applyOnForward") else "own"


def inside(address, nets):
    return any(address in ip_network(net, strict=False) for net in nets)


def is_single(net):
    return ip_network(net).num_addresses == 1


def stripped(labels, prefix):
    return {k[len(prefix) :]: v for k, v in labels.items() if k.startswith(prefix)}


def in_namespaces(text, labels, marker, prefix):
    """A selector of namespaces (accounts): of their labels, with all() and global() about having one at all."""
    known = stripped(labels, prefix) | ({"__has": ""} if marker in labels else {})
    return parse_selector(text.replace("all()", "has(__has)").replace("global()", "!has(__has)")).matches(known)


def packet(source, destination, protocol, sport=40000, dport=80, icmp=(8, 0)):
    return {
        "source": ip_address(source),
        "destination": ip_address(destination),
        "protocol": protocol,
        "sport": sport,
        "dport": dport,
        "icmp": icmp,
    }
