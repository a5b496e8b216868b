"""The CNI_* environment: every mistake is named, nothing else gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.cni.environment import CALLER_VARIABLES, REQUIRED, parse_args, parse_call
from cni_calico.errors import InvalidEnvironment
from cni_calico.plugin.call.client import VARIABLES

GOOD = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "abc123",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
}


def test_a_good_call():
    call = parse_call({**GOOD, "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;IP=10.0.0.1"}, b"{}")
    assert call.path == ("/opt/cni/bin", "/usr/lib/cni")
    assert call.args.is_kubernetes and str(call.args.ip) == "10.0.0.1"


def test_unknown_verb():
    with pytest.raises(InvalidEnvironment, match="unknown CNI_COMMAND: FOO") as failure:
        parse_call({**GOOD, "CNI_COMMAND": "FOO"}, b"")
    assert failure.value.code == 4


@pytest.mark.parametrize("command", sorted(REQUIRED))
def test_missing_variables_are_listed(command):
    for name in REQUIRED[command]:
        environ = {**GOOD, "CNI_COMMAND": command}
        del environ[name]
        with pytest.raises(InvalidEnvironment) as failure:
            parse_call(environ, b"")
        assert failure.value.message == f"required env variables [{name}] missing"


def test_del_needs_no_netns():
    environ = {**GOOD, "CNI_COMMAND": "DEL"}
    del environ["CNI_NETNS"]
    assert parse_call(environ, b"").netns == ""


@pytest.mark.parametrize("value", ["a/b", "..", "x" * 300, "ü", "", "-a", "a b", "../../etc"])
def test_bad_container_ids(value):
    with pytest.raises(InvalidEnvironment):
        parse_call({**GOOD, "CNI_CONTAINERID": value}, b"")


@pytest.mark.parametrize("value", ["\udcff", "eth\udc80", "a/b", "..", ".", "x" * 16, "e:0", "e 0", "\n", "üüüüüüüü"])
def test_bad_interface_names(value):
    with pytest.raises(InvalidEnvironment, match="interface name"):
        parse_call({**GOOD, "CNI_IFNAME": value}, b"")


@pytest.mark.parametrize("value", ["IP", "IP=1.2.3", "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=a/b", "K8S_POD_NAMESPACE=../x"])
def test_bad_args(value):
    with pytest.raises(InvalidEnvironment, match="CNI_ARGS"):
        parse_args(value)


def test_the_shim_sends_what_the_parser_reads():
    assert VARIABLES.split() == list(CALLER_VARIABLES)


@given(st.dictionaries(st.sampled_from(sorted({*GOOD, "CNI_ARGS"})), st.text(max_size=40)), st.binary(max_size=40))
def test_anything_parses_or_is_refused_by_name(changes, stdin):
    try:
        call = parse_call({**GOOD, **changes}, stdin)
    except InvalidEnvironment as e:
        assert e.code == 4 and e.message
    else:
        assert "/" not in call.container_id and "/" not in call.ifname


@pytest.mark.parametrize("name", ["a/b", "we b", "\x07bell", "x" * 254, ""])
def test_podmans_name_of_a_container_never_fails_a_call(name: str) -> None:
    args = parse_args(f"IgnoreUnknown=1;K8S_POD_NAME={name}")
    assert (args.pod_name, args.is_kubernetes) == ("", False)
    assert parse_args("K8S_POD_NAME=web").pod_name == "web"
