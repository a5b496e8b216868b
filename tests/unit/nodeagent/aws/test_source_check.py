"""awsSrcDstCheck against services that answer as AWS' do: what is changed, by whom, and what is said where it fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.errors import TryAgain
from cni_calico.log import SILENT, Log
from cni_calico.nodeagent.aws.documents import parse_interface
from cni_calico.nodeagent.aws.source_check import UNMET, SourceCheck, bring_about
from cni_calico.nodeagent.status.file import unmet_needs
from tests.deadlines import until
from tests.unit.nodeagent.aws.fake_aws import DESCRIBED, FakeAws


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    made = FakeAws()
    yield made
    made.close()


def at_once(seconds: float) -> bool:
    return False


def change(aws: FakeAws, *, enabled: bool, **environ: str) -> None:
    bring_about({**aws.environ, **environ}, enabled=enabled, wait=at_once)


def test_the_first_interface_is_changed_and_no_other(aws: FakeAws) -> None:
    change(aws, enabled=False)
    assert aws.checked is False
    assert aws.calls == [("DescribeInstances", "of-role"), ("ModifyNetworkInterfaceAttribute", "of-role")]
    change(aws, enabled=False)
    assert len(aws.calls) == 3  # nothing is to be changed
    change(aws, enabled=True)
    assert aws.checked is True


def test_credentials_are_looked_for_in_the_order_of_aws(aws: FakeAws, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token\n")
    account = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ROLE_ARN": "arn:role",
        "AWS_ENDPOINT_URL_STS": f"{aws.url}/sts",
    }
    container = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{aws.url}/agent",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "pass",
    }
    given = {"AWS_ACCESS_KEY_ID": "of-environment", "AWS_SECRET_ACCESS_KEY": "s"}
    for environ, who in (
        ({}, "of-role"),
        (container, "of-container"),
        ({**container, **account}, "of-account"),
        ({**container, **account, **given}, "of-environment"),
    ):
        aws.checked = True
        change(aws, enabled=False, **environ)
        assert aws.calls[-1] == ("ModifyNetworkInterfaceAttribute", who)


def test_what_is_there_and_cannot_be_used_is_not_passed_over(aws: FakeAws, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another")
    with pytest.raises(TryAgain, match=r"exchange the service account's token .*: AccessDenied: no"):
        change(
            aws,
            enabled=False,
            AWS_WEB_IDENTITY_TOKEN_FILE=str(tmp_path / "token"),
            AWS_ROLE_ARN="arn:role",
            AWS_ENDPOINT_URL_STS=f"{aws.url}/sts",
        )
    with pytest.raises(TryAgain, match="the container's agent answered with 403"):
        change(aws, enabled=False, AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{aws.url}/agent")
    assert aws.calls == []


def test_what_passes_is_tried_three_times(aws: FakeAws) -> None:
    aws.errors = [(503, "RequestLimitExceeded"), (500, "InternalError")]
    change(aws, enabled=False)
    assert aws.checked is False
    aws.errors = [(503, "Unavailable")] * 3
    with pytest.raises(TryAgain, match="Unavailable"):
        change(aws, enabled=True)
    assert aws.errors == []


@pytest.mark.parametrize(
    ("error", "help"),
    [
        ((403, "UnauthorizedOperation"), "ec2:DescribeInstances and ec2:ModifyNetworkInterfaceAttribute"),
        ((400, "RequestExpired"), "this host's must not differ by more than 5 minutes"),
        ((401, "AuthFailure"), "this host's must not differ by more than 5 minutes"),
    ],
)
def test_what_does_not_pass_is_named_with_what_helps(aws: FakeAws, error: tuple[int, str], help: str) -> None:
    aws.errors = [error]
    with pytest.raises(TryAgain, match=f"{error[1]}: you are not authorized") as failed:
        change(aws, enabled=False)
    assert help in failed.value.details and len(aws.calls) == 1


def test_a_metadata_service_that_does_not_answer_is_named(aws: FakeAws) -> None:
    nobody = f"{aws.environ['AWS_EC2_METADATA_SERVICE_ENDPOINT'].rpartition(':')[0]}:1"
    with pytest.raises(TryAgain, match="cannot read the metadata of this instance: cannot ask") as failed:
        change(aws, enabled=False, AWS_EC2_METADATA_SERVICE_ENDPOINT=nobody)
    assert "hop limit" in failed.value.details
    aws.first_version_only = True
    with pytest.raises(TryAgain, match="a token was answered with status 405"):
        change(aws, enabled=False)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/latest/dynamic/instance-identity/document", "[" * 100_000),
        ("/latest/dynamic/instance-identity/document", '{"instanceId": 7}'),
        ("/latest/meta-data/iam/security-credentials/", " "),
        ("/latest/meta-data/iam/security-credentials/node-role", '{"Code": "Failed"}'),
    ],
)
def test_metadata_that_says_nothing_changes_nothing(aws: FakeAws, path: str, text: str) -> None:
    aws.metadata[path] = text
    with pytest.raises(TryAgain):
        change(aws, enabled=False)
    assert aws.calls == []


@pytest.mark.parametrize(
    "text",
    ["", "<a>", "<a/>", DESCRIBED.format(check="x").replace("x>0<", "x>2<")],
)
def test_answers_without_a_first_interface(text: str) -> None:
    with pytest.raises(TryAgain, match="what EC2 says of this instance"):
        parse_interface(text if "deviceIndex" not in text else text.replace("<deviceIndex>0", "<deviceIndex>2"))


def test_the_node_is_not_ready_until_it_worked_once(aws: FakeAws) -> None:
    facts: dict[str, Any] = {}
    threads: list[threading.Thread] = []
    stopping = threading.Event()

    def start(work: Any) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    checks = SourceCheck(aws.environ, SILENT, facts, start, stopping)
    try:
        checks.use("DoNothing")
        assert threads == [] and facts == {}
        checks.use("Disable")
        assert unmet_needs(facts) in ([], ["awsSrcDstCheck Disable has not been carried out yet"])
        until(lambda: facts[UNMET] == [], "it is done")
        assert aws.checked is False
        checks.use("DoNothing")
        aws.errors = [(403, "UnauthorizedOperation")]
        checks.use("Enable")
        until(lambda: "UnauthorizedOperation" in str(facts[UNMET]), "it fails")
        checks.use("Disable")  # which is tried at once
        until(lambda: facts[UNMET] == [], "it is done")
        assert len(threads) == 1
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def test_a_failure_is_logged_once(aws: FakeAws, capfd: pytest.CaptureFixture[str]) -> None:
    aws.errors = [(403, "UnauthorizedOperation")] * 9
    stopping, facts = threading.Event(), dict[str, Any]()
    threads: list[threading.Thread] = []

    def start(work: Any) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    checks = SourceCheck(aws.environ, Log("info"), facts, start, stopping)
    checks.use("Disable")
    until(lambda: "Unauthorized" in str(facts[UNMET]), "it fails")
    stopping.set()
    threads[0].join()
    said = capfd.readouterr().err
    assert said.count("awsSrcDstCheck Disable") == 1 and "ec2:DescribeInstances" in said


def test_a_token_that_is_no_text_is_named_and_ends_nothing(aws: FakeAws, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    environ = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_ROLE_ARN": "arn:role"}
    stopping, facts = threading.Event(), dict[str, Any]()
    threads: list[threading.Thread] = []

    def start(work: Any) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    SourceCheck({**aws.environ, **environ}, SILENT, facts, start, stopping).use("Disable")
    until(lambda: "utf-8" in str(facts[UNMET]), "it is named")
    assert threads[0].is_alive() and aws.calls == []
    stopping.set()
    threads[0].join()
