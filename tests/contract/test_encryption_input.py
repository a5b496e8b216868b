"""What encryption makes of bad input, and which test shows it; a name that is no test's fails here.

key that is no base64 of 32 bytes, all zero, or this node's own: unusable, guarded where it is mandatory
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_a_node_that_is_no_peer
    tests/unit/ctl/encryption/test_keys.py:test_each_node_has_what_is_wrong_with_its_key
    tests/netns/encryption/test_mandatory.py:test_nothing_is_readable_whatever_happens
the same key on two nodes: neither, both named
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_of_two_nodes_with_one_key_neither_is_a_peer
    tests/netns/encryption/test_mandatory_nodes.py:test_nodes_come_and_go
a key that changes all the time: followed, logged, counted
    tests/unit/nodeagent/dataplane/parts/test_wireguard.py:test_another_key_of_a_node_is_named_and_counted
    tests/unit/nodeagent/status/test_encryption_metrics.py:test_peers_by_what_becomes_of_packets_to_them
    tests/unit/nodeagent/dataplane/encryption/test_steps.py:test_another_key_is_one_message_and_the_route_stays
    tests/netns/encryption/test_five_nodes.py:test_five_nodes_have_new_keys
the own stored key differs from the device's: told again, not for ever
    tests/unit/nodeagent/keepers/test_public_keys.py:test_another_key_is_corrected_but_not_for_ever
WireGuard address outside of every pool, a pod's, another node's: replaced; a remote's is not sent to
    tests/unit/nodeagent/keepers/test_tunnel_addresses.py:test_wireguards_address_that_another_record_says_is_replaced
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_an_address_that_a_node_only_claims
    tests/netns/encryption/test_in_the_way.py:test_what_is_in_the_way
networks that two nodes claim: the longest, then the block's node
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_an_address_that_was_lent
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_a_hosts_address_that_is_a_pods_is_not_allowed
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_an_address_of_two_hosts_is_neithers
port 0 or above 65535; keepalive fraction, negative, above 65535 s: the default, or rounded up, and a warning
    tests/unit/nodeagent/context/test_encryption.py:test_what_is_no_value_is_the_default
    tests/unit/nodeagent/context/test_encryption.py:test_the_environment_has_two_other_names
port in use: no device, not ready, who has it
    tests/unit/nodeagent/dataplane/parts/test_wireguard.py:test_a_port_that_somebody_else_has
    tests/netns/encryption/test_in_the_way.py:test_what_is_in_the_way
port of node.<name> that is not default's: a warning
    tests/unit/nodeagent/context/test_encryption.py:test_a_port_of_one_node_alone
MTU too small or too large: clamped, or allowed, and a warning; the check says what passes
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_an_mtu_that_is_asked_for
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_an_mtu_too_small_for_ipv6
    tests/netns/encryption/test_path.py:test_a_path_that_is_smaller_than_the_interfaces
name of a foreign device, or of one that is not WireGuard's: never taken over
    tests/unit/nodeagent/dataplane/parts/test_wireguard.py:test_an_interface_of_others
    tests/unit/nodeagent/dataplane/parts/test_wireguard.py:test_a_tunnel_of_the_hosts_own
    tests/netns/encryption/test_in_the_way.py:test_what_is_in_the_way
no module, no permission, no bit of marks, no table: tried again, said, the guard stays
    tests/unit/nodeagent/dataplane/parts/test_wireguard.py:test_a_kernel_without_wireguard
    tests/unit/nodeagent/dataplane/parts/test_wireguard.py:test_a_host_that_forbids_it
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_what_is_not_possible
    tests/unit/nodeagent/context/test_encryption.py:test_the_kernels_own_tables_are_not_used
    tests/netns/encryption/test_mandatory_nodes.py:test_a_node_that_cannot_encrypt
wireguardHostEncryptionEnabled: said, pods are encrypted all the same
    tests/unit/nodeagent/dataplane/encryption/test_desired.py:test_host_encryption_is_said_not_to_be_supported
strict neither true nor false: counts as true, and a warning
    tests/unit/nodeagent/dataplane/encryption/test_guard.py:test_what_is_neither_yes_nor_no_is_yes
    tests/unit/ctl/encryption/test_keys.py:test_what_is_mandatory_fails_closed
    tests/netns/encryption/test_mandatory.py:test_it_goes_when_it_is_read_that_it_need_not_be
strict with WireGuard disabled for a family in use: cut, refused first, said
    tests/unit/nodeagent/dataplane/encryption/test_guard.py:test_a_family_that_is_not_encrypted_is_cut_and_said
    tests/unit/ctl/encryption/test_strict.py:test_strict_cuts_nobody_off_unasked
    tests/netns/encryption/test_mandatory.py:test_it_goes_when_it_is_read_that_it_need_not_be
records that cannot be read, also at a start: what is guarded stays, and pods wait
    tests/unit/nodeagent/dataplane/encryption/test_guard.py:test_while_records_cannot_be_read_what_was_guarded_stays
    tests/unit/nodeagent/dataplane/parts/test_guard.py:test_an_earlier_runs_table_is_not_replaced_by_one_that_knows_less
    tests/unit/nodeagent/dataplane/parts/test_guard.py:test_it_stands_until_it_is_read_that_it_need_not
    tests/netns/encryption/test_mandatory_nodes.py:test_nodes_come_and_go
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (__doc__ or "").splitlines() if line and not line.startswith(" ")][1:]
TESTS = sorted({line.strip() for line in (__doc__ or "").splitlines() if line.startswith("    tests/")})


def test_every_row_has_a_test() -> None:
    lines = [line for line in (__doc__ or "").splitlines()[1:] if line]
    assert len(ROWS) == 16
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert line.startswith(" ") or following.startswith("    tests/"), line


@pytest.mark.parametrize("path", sorted({test.partition(":")[0] for test in TESTS}))
def test_the_tests_exist(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {test.partition(":")[2] for test in TESTS if test.startswith(f"{path}:")} <= there
