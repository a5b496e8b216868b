"""The checker judges a connection as the engine does; what is missing or cannot be read allows nothing."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.alp.asked import ALLOWED, DENIED, UNAVAILABLE, AskedPeer, AskedRequest
from cni_calico.alp.synced import SyncedPolicies
from cni_calico.nodeagent.sync.felix_pb2 import (
    ActivePolicyUpdate,
    InSync,
    IPSetDeltaUpdate,
    IPSetUpdate,
    Policy,
    PolicyID,
    Rule,
    TierInfo,
    ToDataplane,
    WorkloadEndpoint,
    WorkloadEndpointUpdate,
)
from cni_calico.policy.explain import Packet, decide
from tests.unit.alp.told import told, wanted_of
from tests.unit.policy.cluster import PACKETS, as_packet, documents_for, keys

CONNECTIONS = [as_packet(raw) for raw in PACKETS if raw["protocol"] in (6, 17)][::2]
KEYS = [key for key in keys() if key[0] != "HostEndpoint"]
LOCAL = ("WorkloadEndpoint", "a", "l1")
GOVERNING = [
    ("NetworkPolicy", "a", "p"),
    ("GlobalNetworkPolicy", "", "p"),
    ("Profile", "", "kns.a"),
    ("Profile", "", "own"),
]
# mostly somebody allows, so that much depends on each rule
REACHES = st.one_of(
    st.just({}),
    st.just({"ingress": [{"action": "Allow", "protocol": "TCP"}]}),
    st.just({"selector": "all()", "types": ["Ingress"]}),
    st.just({"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Pass"}]}),
)


def request_of(packet: Packet) -> AskedRequest:
    return AskedRequest(
        AskedPeer(packet.source, packet.source_port),
        AskedPeer(packet.destination, packet.destination_port),
        packet.protocol,
    )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_connection_is_judged_as_the_engine_judges_it(data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(KEYS), max_size=8)) | {LOCAL, *GOVERNING}
    documents = {key: data.draw(documents_for(key)) for key in sorted(chosen)}
    documents[LOCAL]["spec"] |= {"ipNetworks": ["10.0.0.1/32", "fd00::1/128"], "profiles": ["kns.a", "own"]}
    for key in GOVERNING:
        documents[key]["spec"] |= data.draw(REACHES)
    wanted = wanted_of(documents)
    key = next((key for key in wanted.endpoints if key.name == "l1" and key.namespace == "a"), None)
    if key is None:  # the interface has another owner
        return
    checker = told(wanted, key, documents)
    for packet in CONNECTIONS:
        expected = decide(wanted, key, "ingress", packet).verdict == "Allow"
        assert (checker.judge(request_of(packet)).code == ALLOWED) is expected, packet


# -- what cannot be known ---------------------------------------------------------------------------------------------

ID = PolicyID(name="p", namespace="shop", kind="NetworkPolicy")
ASKED = AskedRequest(AskedPeer(ip_address("10.0.0.2"), 40000), AskedPeer(ip_address("10.0.0.1"), 80))


def checker_with(*rules: Rule, default: str = "Deny") -> SyncedPolicies:
    found = SyncedPolicies()
    tier = TierInfo(name="default", ingress_policies=[ID], default_action=default)
    for message in (
        ToDataplane(active_policy_update=ActivePolicyUpdate(id=ID, policy=Policy(inbound_rules=rules))),
        ToDataplane(workload_endpoint_update=WorkloadEndpointUpdate(endpoint=WorkloadEndpoint(tiers=[tier]))),
        ToDataplane(in_sync=InSync()),
    ):
        found.receive(message.SerializeToString())
    return found


ALLOW, DENY, PASS = Rule(action="allow"), Rule(action="deny"), Rule(action="next-tier")
NEWER = Rule.FromString(ALLOW.SerializeToString() + b"\xc2\x3e\x01x")  # field 1000, a text
NEWER_HTTP = Rule.FromString(ALLOW.SerializeToString() + b"\xd2\x07\x05\xc2\x3e\x02no")  # the same in http_match
SHOWN_ONLY = Rule.FromString(ALLOW.SerializeToString() + b"\xca\x0c\x02id")  # field 201


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ([ALLOW], ALLOWED),
        ([SHOWN_ONLY], ALLOWED),
        ([NEWER], DENIED),
        ([NEWER_HTTP], DENIED),
        ([NEWER, ALLOW], ALLOWED),
        ([Rule(action="allow", src_ip_set_ids=["none"])], DENIED),
        ([Rule(action="allow", not_src_ip_set_ids=["none"])], DENIED),
        ([Rule(action="allow", dst_named_port_ip_set_ids=["none"])], DENIED),
        ([Rule(action="deny", src_ip_set_ids=["none"]), ALLOW], DENIED),
        ([Rule(action="next-tier", src_ip_set_ids=["none"]), ALLOW], DENIED),
        ([Rule(action="allow", src_net=["10.0.0.0/33"])], DENIED),
        ([ALLOW, Rule(action="deny", original_src_namespace_selector="x ==")], DENIED),
        ([Rule(action="perhaps")], DENIED),
        ([Rule(action="log"), ALLOW], ALLOWED),
        ([], DENIED),
    ],
)
def test_what_cannot_be_known_does_not_open(rules: list[Rule], code: int) -> None:
    assert checker_with(*rules).judge(ASKED).code == code


def test_a_policy_that_was_not_told_is_passed_over() -> None:
    found = checker_with(ALLOW)
    removal = ToDataplane()
    removal.active_policy_remove.id.CopyFrom(ID)
    found.receive(removal.SerializeToString())
    assert found.judge(ASKED).code == DENIED


def test_without_an_endpoint_or_before_everything_is_told_nothing_is_allowed() -> None:
    found = SyncedPolicies()
    assert found.judge(ASKED).code == UNAVAILABLE
    found = checker_with(ALLOW)
    gone = ToDataplane()
    gone.workload_endpoint_remove.SetInParent()
    found.receive(gone.SerializeToString())
    assert found.judge(ASKED).code == UNAVAILABLE


def test_a_peer_without_an_address_is_in_no_network() -> None:
    nowhere = AskedRequest()
    for rule, code in ((Rule(action="allow", src_net=["0.0.0.0/0"]), DENIED), (ALLOW, ALLOWED)):
        assert checker_with(rule).judge(nowhere).code == code
    assert checker_with(Rule(action="deny", src_net=["10.9.0.0/16"]), ALLOW).judge(nowhere).code == DENIED


@pytest.mark.parametrize(
    "data", [b"\xff", ToDataplane(ipset_delta_update=IPSetDeltaUpdate(id="x")).SerializeToString()]
)
def test_what_is_no_message_ends_the_stream(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no message|without having been told"):
        checker_with(ALLOW).receive(data)


def test_a_set_whose_change_cannot_be_read_is_none() -> None:
    found = checker_with(Rule(action="deny", src_ip_set_ids=["x"]), ALLOW)
    for update in (
        ToDataplane(ipset_update=IPSetUpdate(id="x", type=IPSetUpdate.NET, members=["10.9.0.0/16"])),
        ToDataplane(ipset_delta_update=IPSetDeltaUpdate(id="x", added_members=["10.0.0.2/32"])),
    ):
        found.receive(update.SerializeToString())
    assert found.judge(ASKED).code == DENIED
    wrong = IPSetDeltaUpdate(id="x", removed_members=["10.0.0.2/32"], added_members=["10.0.0.300/32"])
    with pytest.raises(ValueError, match="no address"):
        found.receive(ToDataplane(ipset_delta_update=wrong).SerializeToString())
    assert found.judge(ASKED).code == DENIED


def test_messages_about_other_things_are_ignored() -> None:
    found: Any = checker_with(ALLOW)
    found.receive(b"\x6a\x00")  # field 13, config_update
    assert found.judge(ASKED).code == ALLOWED
