"""The command line of calico-node: every flag of today's deployments, in every notation of theirs."""

import pytest

from cni_calico.nodeagent.flags import COMMANDS, MODIFIERS, PROBES, SERVICES, UsageError, parse_flags, render_usage

NAMES = """
startup node-services init best-effort hostpath-init allocate-tunnel-addrs allocate-tunnel-addrs-run-once
monitor-addresses monitor-token felix confd confd-run-once confd-keep-stage-file complete-startup
status-reporter shutdown cni-server felix-live felix-ready felix-started bird-live bird-ready bird6-live bird6-ready
show-status v boot-table flow-recorder flows-pipe rehearse
"""
TODAYS = tuple(NAMES.split())


@pytest.mark.parametrize("flag", TODAYS)
@pytest.mark.parametrize("notation", ["-{}", "--{}", "-{}=true", "--{}=1"])
def test_every_flag(flag, notation):
    assert parse_flags([notation.format(flag)]) == ({flag}, {})


def test_no_flag_is_unknown_to_the_list():
    assert {*COMMANDS, *SERVICES, *PROBES, *MODIFIERS} == {*TODAYS, "run"}


@pytest.mark.parametrize(
    ("arguments", "chosen", "values"),
    [
        (["run"], {"run"}, {}),
        (["version"], {"v"}, {}),
        (["--version"], {"v"}, {}),
        (["-felix", "-confd"], {"felix", "confd"}, {}),
        (["-felix=false"], set(), {}),
        (["-bird-ready", "-threshold-time=10s"], {"bird-ready"}, {"threshold-time": "10s"}),
        (["-bird-ready", "-threshold-time", "1m"], {"bird-ready"}, {"threshold-time": "1m"}),
        (["-flows", "-1"], set(), {"flows": "-1"}),
        (["--flows=5"], set(), {"flows": "5"}),
        (["-confd", "-confd-confdir=/etc/calico/confd"], {"confd"}, {"confd-confdir": "/etc/calico/confd"}),
        ([], set(), {}),
    ],
)
def test_notations(arguments, chosen, values):
    assert parse_flags(arguments) == (chosen, values)


@pytest.mark.parametrize(
    "arguments", [["-felx"], ["felix"], ["---felix"], ["-"], ["-felix=perhaps"], ["-threshold-time"]]
)
def test_mistakes(arguments):
    with pytest.raises(UsageError):
        parse_flags(arguments)


def test_usage_names_every_flag():
    assert all(f"-{flag} " in render_usage() for flag in (*TODAYS, "threshold-time", "confd-confdir"))
