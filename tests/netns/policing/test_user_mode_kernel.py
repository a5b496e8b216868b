"""Policies on a kernel without nf_tables: a user-mode one, started for the purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.features import USER_MODE

ROOT = Path(__file__).parents[3]
HERE = "tests/netns/policing"
LIMIT_S = 3400
MODULES = (
    "ipv6 veth iptable_filter iptable_raw iptable_mangle iptable_nat ip6table_filter ip6table_raw ip6table_mangle "
    "ip6table_nat ip_set ip_set_hash_ip ip_set_hash_net ip_set_hash_ipport xt_set xt_comment xt_conntrack xt_mark "
    "xt_multiport xt_limit xt_connlimit ipt_rpfilter ip6t_rpfilter xt_CT xt_LOG nf_log_syslog ipt_REJECT ip6t_REJECT "
    "nf_conntrack_netlink xt_nat xt_tcpudp xt_addrtype sch_ingress cls_matchall act_skbedit"
)
# no others: the kernel must not load nf_tables when it is asked for it
LOADED = (
    f'export {USER_MODE}=1; echo /nonexistent >/proc/sys/kernel/modprobe; busybox modprobe -a {MODULES} && exec "$@"'
)

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.never_excused, pytest.mark.timeout(LIMIT_S + 120)]


def passed_inside(*arguments: str) -> str:
    """What pytest says there."""
    inside = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-unexpected-skips", *arguments]
    loaded = ["sh", "-c", LOADED, "sh", *inside]
    run = [ROOT / "tests/setup/uml/uml-run.sh", "-m", "1024", "-t", str(LIMIT_S), "-w", ROOT, "--", *loaded]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S + 60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.takes(60)
def test_all_verdicts() -> None:
    assert "5 passed" in passed_inside(f"{HERE}/inside_uml.py")


# what its own modules do; all of test_legacy_hosts.py, ten seconds each there, are tried on this kernel
STAGES = (
    "test_packet_rates",
    "test_numbers_of_connections",
    "test_a_source_that_is_not_the_workloads[Any-4]",
    "test_what_deny_does[Reject-6]",
    "test_what_is_not_tracked",
    "test_host_endpoints_that_contradict_each_other",
)


@pytest.mark.takes(200)
def test_the_engine() -> None:
    """The tests of the engine on legacy iptables, but for those that have rules of nftables beside its own."""
    tests = [f"{HERE}/test_legacy.py", *(f"{HERE}/test_legacy_hosts.py::{name}" for name in STAGES)]
    said = passed_inside("--slow", "-k", "not from_nftables", *tests)
    assert "2 deselected" in said
