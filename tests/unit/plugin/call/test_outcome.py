"""The line about a call that succeeded or failed."""

from __future__ import annotations

import json
import re

import pytest

from cni_calico.cni.answer import NOTHING, Answer, answer_error
from cni_calico.cni.environment import Call, parse_call
from cni_calico.errors import CalicoError, InvalidEnvironment, KernelError, NoPool, TryAgain
from cni_calico.log import Log
from cni_calico.plugin.call.outcome import describe_success, log_failure, log_success

POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web"


def call(verb: str, args: str = POD) -> Call:
    environ = {"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"}
    return parse_call({**environ, "CNI_NETNS": "/var/run/netns/x", "CNI_ARGS": args}, b"{}")


NEW = {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/32"}, {"address": "fd00::1/128"}]}
OLD = {"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.1/32"}}


@pytest.mark.parametrize(
    ("made", "answer", "text"),
    [
        (call("ADD"), Answer(0, json.dumps(NEW)), "shop/web 10.0.0.1/32, fd00::1/128 in 12.3 ms"),
        (call("ADD"), Answer(0, json.dumps(OLD)), "shop/web 10.0.0.1/32 in 12.3 ms"),
        (call("ADD", ""), Answer(0, json.dumps(OLD)), "10.0.0.1/32 in 12.3 ms"),
        (call("ADD"), Answer(0, "{}"), "shop/web no address in 12.3 ms"),
        (call("ADD", "K8S_POD_NAME=web"), Answer(0, json.dumps(OLD)), "web 10.0.0.1/32 in 12.3 ms"),
        (call("DEL"), NOTHING, "shop/web removed in 12.3 ms"),
        (call("CHECK"), NOTHING, ""),
        (call("ADD"), Answer(1, "{}"), ""),
    ],
)
def test_the_text(made: Call, answer: Answer, text: str) -> None:
    assert describe_success(made, answer, 0.0123) == text


def test_a_name_that_the_call_does_not_say(capfd: pytest.CaptureFixture[str]) -> None:
    """nerdctl's calls put containerd's namespace before the ID, and have no name."""
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": f"default-{'ab' * 32}", "CNI_IFNAME": "eth0"}
    made = parse_call({**environ, "CNI_PATH": "/opt/cni/bin", "CNI_NETNS": "/var/run/netns/x"}, b"{}")
    assert describe_success(made, Answer(0, json.dumps(OLD)), 0.0123, "web") == "web 10.0.0.1/32 in 12.3 ms"
    assert describe_success(call("ADD"), Answer(0, json.dumps(OLD)), 0.0123, "other").startswith("shop/web 10")
    log_failure(made, failed(NoPool("no pool")), Log("info"), "web")
    assert f" ADD {'ab' * 6}a eth0: web failed with code 112: no pool" in capfd.readouterr().err


def test_where_it_is_written(tmp_path, capfd) -> None:
    """In the network's file and the server's log, never on the caller's standard error; both obey their level."""
    network = Log("info", str(tmp_path / "cni.log"), context="ADD c1 eth0: ")
    log_success("shop/web ...", network)
    assert capfd.readouterr().err == ""
    log_success("shop/web ...", network, Log("info", context="cni-server: "))
    assert capfd.readouterr().err.endswith("cni-server: ADD c1 eth0: shop/web ...\n")
    assert (tmp_path / "cni.log").read_text().count("[INFO]") == 2
    log_success("", network, Log("info"))
    log_success("x", Log("error", str(tmp_path / "cni.log")), Log("error"))
    assert (capfd.readouterr().err, (tmp_path / "cni.log").read_text().count("\n")) == ("", 2)


def failed(error: CalicoError) -> Answer:
    return answer_error(error, "1.0.0")


@pytest.mark.parametrize(
    ("made", "error", "line"),
    [
        (
            call("ADD"),
            NoPool("no pool", details="make one"),
            "[ERROR] ADD c1 eth0: shop/web failed with code 112: no pool (make one)",
        ),
        (
            call("ADD", "K8S_POD_NAME=web"),
            TryAgain("not yet"),
            "[WARNING] ADD c1 eth0: web failed with code 11: not yet",
        ),
        (call("DEL", ""), KernelError("a\nb\x1b[2J", errno=0), "[ERROR] DEL c1 eth0: failed with code 120: a?b?[2J"),
        (None, InvalidEnvironment("no name"), "[ERROR] a call failed with code 4: no name"),
        (call("CHECK"), NoPool("no pool"), ""),
    ],
)
def test_a_failure_is_one_line(
    made: Call | None, error: CalicoError, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log_failure(made, failed(error), Log("info"))
    said = capfd.readouterr().err
    assert re.sub(r"^\S+ \S+ (\[\w+\])\[\d+\]", r"\1", said) == (f"{line}\n" if line else "")


def test_a_long_failure_is_cut_and_a_success_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    log_failure(call("ADD"), failed(NoPool("x" * 4000)), Log("info"))
    assert len(capfd.readouterr().err) < 700
    log_failure(call("ADD"), Answer(0, "{}"), Log("info"))
    assert capfd.readouterr().err == ""
