"""A driver of a data plane that has none: it keeps what it is told, and judges packets and requests by it, naively.

    python -m tests.fakes.driver SOCKET

It reads messages at descriptor 3, writes at descriptor 4, and answers questions at SOCKET, JSON by lines:
``{"read": N}`` is answered once it has read so many messages; see ``answer`` for the others. Nothing of the product is
used but the generated messages and the selector language, which has an oracle of its own.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
import threading
from ipaddress import ip_address, ip_network
from typing import Any

from cni_calico.model.selectors import parse_selector
from cni_calico.nodeagent.sync.felix_pb2 import FromDataplane, ToDataplane
from tests.fakes.driver_ways import ToldCluster

NAMES = {"tcp": 6, "udp": 17, "sctp": 132}
SINGLE = ("src_net", "dst_net")


def key_of(policy: Any) -> str:
    return f"{policy.kind}/{policy.namespace}/{policy.name}"


def id_of(endpoint: Any) -> str:
    return f"{endpoint.orchestrator_id} {endpoint.workload_id} {endpoint.endpoint_id}"


class Told:
    """Whatever a message names must have come before it, and be there."""

    def __init__(self) -> None:
        self.sets: dict[str, set[str]] = {}
        self.policies: dict[str, Any] = {}
        self.profiles: dict[str, Any] = {}
        self.workloads: dict[str, Any] = {}
        self.hosts: dict[str, Any] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self.accounts: dict[str, dict[str, str]] = {}
        self.others: list[str] = []
        self.cluster = ToldCluster()
        self.config: dict[str, str] = {}
        self.first = ""
        self.wrong: list[str] = []
        self.read = 0

    def receive(self, message: Any) -> None:
        kind = message.WhichOneof("payload")
        self.first = self.first or kind
        if message.sequence_number != self.read:
            self.wrong.append(f"message {message.sequence_number} came as number {self.read}")
        self.read += 1
        one = getattr(message, kind)
        known: dict[str, Any] = {
            "active_policy": self.policies,
            "active_profile": self.profiles,
            "workload_endpoint": self.workloads,
            "host_endpoint": self.hosts,
            "namespace": self.namespaces,
            "service_account": self.accounts,
        }
        what, _, change = kind.rpartition("_")
        if kind == "ipset_update":
            self.sets[one.id] = set(one.members)
        elif kind == "ipset_delta_update":
            members = self.sets[one.id]
            if not members.issuperset(one.removed_members) or not members.isdisjoint(one.added_members):
                self.wrong.append(f"a change of {one.id} that is none")
            members -= set(one.removed_members)
            members |= set(one.added_members)
        elif kind == "ipset_remove":
            del self.sets[one.id]
        elif what not in known:
            self.others.append(kind)
            self.cluster.receive(kind, one)
            self.wrong += self.cluster.wrong
            self.cluster.wrong.clear()
            if kind == "config_update":
                self.config = dict(one.config)
            return
        elif change == "update":
            known[what][self.name(what, one.id)] = self.content(what, one)
        else:
            del known[what][self.name(what, one.id)]
        self.require_whole(kind)

    @staticmethod
    def name(what: str, its: Any) -> str:
        if what == "active_policy":
            return key_of(its)
        if what == "workload_endpoint":
            return id_of(its)
        if what == "service_account":
            return f"{its.namespace}/{its.name}"
        return str(its.endpoint_id if what == "host_endpoint" else its.name)

    @staticmethod
    def content(what: str, update: Any) -> Any:
        field = {"active_policy": "policy", "active_profile": "profile"}.get(what, "endpoint")
        return dict(update.labels) if what in ("namespace", "service_account") else getattr(update, field)

    def require_whole(self, after: str) -> None:
        for policy in (*self.policies.values(), *self.profiles.values()):
            for rule in (*policy.inbound_rules, *policy.outbound_rules):
                for side in ("src", "dst"):
                    self.wrong += [f"{after}: no set {one}" for one in sets_of(rule, side) if one not in self.sets]
        for endpoint in (*self.workloads.values(), *self.hosts.values()):
            self.wrong += [f"{after}: no profile {one}" for one in endpoint.profile_ids if one not in self.profiles]
            for tier in endpoint.tiers:
                named = map(key_of, (*tier.ingress_policies, *tier.egress_policies))
                self.wrong += [f"{after}: no policy {one}" for one in named if one not in self.policies]

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def verdict(self, kind: str, name: str, stage: str, direction: str, packet: dict[str, Any]) -> bool | None:
        endpoint = (self.workloads if kind == "workload" else self.hosts)[name]
        field = {"own": "tiers", "forward": "forward_tiers", "beforeNat": "pre_dnat_tiers", "raw": "untracked_tiers"}
        for tier in getattr(endpoint, field[stage]):
            listed = tier.ingress_policies if direction == "ingress" else tier.egress_policies
            if not listed:
                continue
            action = ""
            for policy in listed:
                found = self.policies[key_of(policy)]
                action = action or self.action_of(found, direction, packet, policy.namespace)
            if action in ("allow", "deny"):
                return action == "allow"
            if not action and stage in ("own", "forward") and tier.default_action != "Pass":
                return False
        if stage != "own":
            return None
        for profile in endpoint.profile_ids:
            action = self.action_of(self.profiles[profile], direction, packet, "")
            if action in ("allow", "deny"):
                return action == "allow"
        return False

    def action_of(self, policy: Any, direction: str, packet: dict[str, Any], namespace: str) -> str:
        for rule in policy.inbound_rules if direction == "ingress" else policy.outbound_rules:
            fits = rule.action != "log" and self.fits(rule, packet, namespace)
            if fits is None and rule.action != "allow":
                return "deny"  # nobody can say whether it fits
            if fits:
                return str(rule.action)
        return ""

    def fits(self, rule: Any, packet: dict[str, Any], namespace: str) -> bool | None:
        source, destination = ip_address(packet["source"]), ip_address(packet["destination"])
        if rule.ip_version and rule.ip_version != source.version:
            return False
        if rule.HasField("protocol") and rule.protocol.number != packet["protocol"]:
            return False
        if rule.HasField("not_protocol") and rule.not_protocol.number == packet["protocol"]:
            return False
        kind, code = packet.get("icmp", (None, None))
        if rule.WhichOneof("icmp") == "icmp_type" and rule.icmp_type != kind:
            return False
        both = rule.icmp_type_code
        if rule.WhichOneof("icmp") == "icmp_type_code" and (both.type, both.code) != (kind, code):
            return False
        if rule.WhichOneof("not_icmp") == "not_icmp_type" and rule.not_icmp_type == kind:
            return False
        both = rule.not_icmp_type_code
        if rule.WhichOneof("not_icmp") == "not_icmp_type_code" and (both.type, both.code) == (kind, code):
            return False
        ports = {"src": packet["sport"], "dst": packet["dport"]}
        for side, address in (("src", source), ("dst", destination)):
            if not self.side_fits(rule, side, address, ports[side], packet["protocol"]):
                return False
        return request_fits(self, rule, packet, namespace)

    def side_fits(self, rule: Any, side: str, address: Any, port: int, protocol: int) -> bool:
        def field(name: str) -> Any:
            return getattr(rule, name.format(side))

        def inside(nets: Any) -> bool:
            return any(address in ip_network(net, strict=False) for net in nets)

        def in_set(name: str) -> bool:
            return inside(self.sets[name])

        def in_port_set(name: str) -> bool:
            for member in self.sets[name]:
                text, _, rest = member.partition(",")
                its, _, number = rest.partition(":")
                its_protocol = NAMES[its] if its in NAMES else int(its)
                if (ip_address(text), its_protocol, int(number)) == (address, protocol, port):
                    return True
            return False

        def in_ports(ranges: Any, names: Any) -> bool:
            numbers = protocol in NAMES.values() and any(one.first <= port <= one.last for one in ranges)
            return numbers or any(map(in_port_set, names))

        services = rule.dst_ip_port_set_ids if side == "dst" else ()
        wants_port = field("{}_ports") or field("{}_named_port_ip_set_ids")
        return (
            (not field("{}_net") or inside(field("{}_net")))
            and not inside(field("not_{}_net"))
            and all(map(in_set, field("{}_ip_set_ids")))
            and not any(map(in_set, field("not_{}_ip_set_ids")))
            and (not wants_port or in_ports(field("{}_ports"), field("{}_named_port_ip_set_ids")))
            and not in_ports(field("not_{}_ports"), field("not_{}_named_port_ip_set_ids"))
            and all(map(in_port_set, services))
        )


def sets_of(rule: Any, side: str) -> list[str]:
    names = [f"{side}_ip_set_ids", f"not_{side}_ip_set_ids", f"{side}_named_port_ip_set_ids"]
    names += [f"not_{side}_named_port_ip_set_ids", *(["dst_ip_port_set_ids"] if side == "dst" else [])]
    return [one for name in names for one in getattr(rule, name)]


# -- requests ---------------------------------------------------------------------------------------------------------


def request_fits(told: Told, rule: Any, packet: dict[str, Any], namespace: str) -> bool | None:
    """Of what a packet filter does not know; None: nobody can say."""
    wanted, method = rule.http_match, packet.get("method", "")
    if method and wanted.methods and not {method, "*"} & set(wanted.methods):
        return False
    answers: list[bool | None] = [True]
    if wanted.paths and packet.get("path"):
        path = cleaned(packet["path"])
        answers = [None if path is None else any(path_fits(one, path) for one in wanted.paths)]
    for side, field in (("src", "source principal"), ("dst", "destination principal")):
        if packet.get(field):
            answers.append(identity_fits(told, rule, side, packet[field], namespace))
    return False if False in answers else None if None in answers else True


def path_fits(wanted: Any, path: str) -> bool:
    text = cleaned(wanted.exact or wanted.prefix) or ""
    if wanted.WhichOneof("path_match") == "exact":
        return path == text
    return path == text or path.startswith(text.rstrip("/") + "/")


def cleaned(path: str) -> str | None:
    path = re.split("[?#]", path)[0]
    if re.search("%(?![0-9a-fA-F]{2})", path) or not path.startswith(("/", "\\")):
        return None
    raw = re.sub(b"%(..)", lambda found: bytes([int(found[1], 16)]), path.encode())
    if re.search(rb"(?i)%(2e|2f|5c|00)", raw) or any(byte < 32 or byte == 127 for byte in raw):
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    done: list[str] = []
    parts = [part.split(";")[0] for part in text.replace("\\", "/").split("/")[1:]]
    for part in parts:
        if part == "..":
            done[-1:] = []
        elif part not in ("", "."):
            done.append(part)
    ends = "/" if done and parts[-1] in ("", ".", "..") else ""
    return "/" + "/".join(done) + ends


def identity_fits(told: Told, rule: Any, side: str, principal: str, namespace: str) -> bool | None:
    match = getattr(rule, f"{side}_service_account_match")
    spaces = getattr(rule, f"original_{side}_namespace_selector")
    selectors = (getattr(rule, f"original_{side}_selector"), getattr(rule, f"original_not_{side}_selector"))
    own = namespace if not spaces and (any(selectors) or match.names or match.selector) else ""
    if not (own or spaces or match.names or match.selector):
        return True
    parts = principal.split("/")
    if len(parts) != 7 or parts[:2] != ["spiffe:", ""] or not parts[2] or (parts[3], parts[5]) != ("ns", "sa"):
        return None
    its_namespace, account = parts[4], parts[6]
    if (own and its_namespace != own) or (match.names and account not in match.names):
        return False
    found: list[bool | None] = [True]
    if spaces:
        text = spaces.replace("all()", "has(__there)").replace("global()", "!has(__there)")
        labels = told.namespaces.get(its_namespace)
        found.append(None if labels is None else parse_selector(text).matches({**labels, "__there": ""}))
    if match.selector:
        labels = told.accounts.get(f"{its_namespace}/{account}")
        found.append(None if labels is None else parse_selector(match.selector).matches(labels))
    return False if False in found else None if None in found else True


# -- the process ------------------------------------------------------------------------------------------------------


class Driver:
    def __init__(self) -> None:
        self.told, self.changed = Told(), threading.Condition()

    def read(self) -> None:
        with open(3, "rb") as source:
            while head := source.read(8):
                message = ToDataplane.FromString(source.read(struct.unpack("<Q", head)[0]))
                with self.changed:
                    try:
                        self.told.receive(message)
                    except KeyError as e:
                        self.told.wrong.append(f"{message.WhichOneof('payload')} of what is not there: {e}")
                    self.changed.notify_all()
        os._exit(0)

    def say(self, data: bytes) -> None:
        os.write(4, struct.pack("<Q", len(data)) + data)

    def answer(self, asked: dict[str, Any]) -> Any:
        told = self.told
        with self.changed:
            if "read" in asked:
                return self.changed.wait_for(lambda: told.read >= asked["read"], 60) and told.wrong
            if "judge" in asked:
                return [told.verdict(*one) for one in asked["judge"]]
            if "ways" in asked:
                return [told.cluster.way(one) for one in asked["ways"]]
            if "say" in asked:
                name, status = asked["say"]
                message = FromDataplane()
                update = message.workload_endpoint_status_update
                update.id.orchestrator_id, update.id.workload_id, update.id.endpoint_id = name.split()
                update.status.status = status
                self.say(message.SerializeToString())
                return None
            if "bytes" in asked:
                os.write(4, bytes.fromhex(asked["bytes"]))
                return None
            if "end" in asked:
                os._exit(asked["end"])
            return {name: getattr(told, name) for name in ("others", "config", "first", "read", "wrong")} | {
                "pid": os.getpid(),
                "workloads": sorted(told.workloads),
                "hosts": sorted(told.hosts),
                "namespaces": told.namespaces,
                "accounts": told.accounts,
                "sets": sorted(told.sets),
                "policies": sorted(told.policies),
                "cluster": told.cluster.as_json(),
            }


def main() -> None:
    driver = Driver()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(8)
        threading.Thread(target=driver.read, daemon=True).start()
        while True:
            asking, _ = listener.accept()
            with asking, asking.makefile("rw") as lines:
                for line in lines:
                    lines.write(json.dumps(driver.answer(json.loads(line))) + "\n")
                    lines.flush()


if __name__ == "__main__":
    main()
