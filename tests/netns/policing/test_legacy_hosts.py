"""The tests of hosts and of stages once more, enforced by legacy iptables and IP sets."""

from __future__ import annotations

import pytest

from tests.netns.policing.lab import Lab
from tests.netns.policing.test_hosts import (
    test_a_host_endpoint_closes_its_interface_but_failsafe_ports,
    test_deny_all_everywhere_locks_nobody_out,
    test_excluded_interfaces,
    test_expected_addresses_and_names_follow_the_interfaces,
    test_forwarded_traffic,
    test_host_endpoints_that_contradict_each_other,
    test_node_ports,
    test_other_failsafe_ports,
    test_pre_dnat_of_all_interfaces,
    test_pre_dnat_with_egress_is_refused_and_the_rest_enforced,
    test_the_hosts_own_connections_to_services,
    test_what_a_host_sends_to_itself,
    test_what_a_node_cannot_do_without_is_named,
    test_what_connection_tracking_cannot_understand_is_not_forwarded,
    test_what_is_not_tracked,
)
from tests.netns.policing.test_legacy import LEGACY
from tests.netns.policing.test_stages import (
    lab_with_policy,
    test_a_source_that_is_not_the_workloads,
    test_numbers_of_connections,
    test_packet_rates,
    test_service_loops,
    test_tunnel_packets_of_workloads,
    test_vxlan_only_from_nodes,
    test_what_connection_tracking_cannot_understand,
    test_what_deny_does,
    test_without_ipv6,
    test_workload_to_host,
)

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.slow]
__all__ = [
    "lab_with_policy",
    "test_a_host_endpoint_closes_its_interface_but_failsafe_ports",
    "test_a_source_that_is_not_the_workloads",
    "test_deny_all_everywhere_locks_nobody_out",
    "test_excluded_interfaces",
    "test_expected_addresses_and_names_follow_the_interfaces",
    "test_forwarded_traffic",
    "test_host_endpoints_that_contradict_each_other",
    "test_node_ports",
    "test_numbers_of_connections",
    "test_other_failsafe_ports",
    "test_packet_rates",
    "test_pre_dnat_of_all_interfaces",
    "test_pre_dnat_with_egress_is_refused_and_the_rest_enforced",
    "test_service_loops",
    "test_the_hosts_own_connections_to_services",
    "test_tunnel_packets_of_workloads",
    "test_vxlan_only_from_nodes",
    "test_what_a_host_sends_to_itself",
    "test_what_a_node_cannot_do_without_is_named",
    "test_what_connection_tracking_cannot_understand",
    "test_what_connection_tracking_cannot_understand_is_not_forwarded",
    "test_what_deny_does",
    "test_what_is_not_tracked",
    "test_without_ipv6",
    "test_workload_to_host",
]


@pytest.fixture(autouse=True)
def on_iptables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "always", LEGACY)
