"""Documents of whoever answers as AWS: none expands, and none is read more than once."""

from __future__ import annotations

import pytest

from cni_calico.errors import TryAgain
from cni_calico.nodeagent.aws.documents import AwsInterface, parse_interface, parse_xml
from cni_calico.nodeagent.aws.web import ANSWER_BYTES
from tests.unit.nodeagent.aws.fake_aws import DESCRIBED

LEVELS = "".join(f"<!ENTITY e{i} '{f'&e{i - 1};' * 10}'>" for i in range(1, 10))
LAUGHS = f"<!DOCTYPE a [<!ENTITY e0 'x'>{LEVELS}]><a>&e9;</a>"


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "<?xml version='1.0'?>\n" + LAUGHS,
        "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/hostname'>]><a>&b;</a>",
        "<!DOCTYPE a SYSTEM 'http://127.0.0.1/a.dtd'><a/>",
    ],
)
def test_a_document_with_a_dtd_is_not_parsed(text: str) -> None:
    with pytest.raises(TryAgain, match="it has a DTD"):
        parse_xml(text, "it")


def test_entities_without_a_dtd_are_unknown() -> None:
    with pytest.raises(TryAgain, match="undefined entity"):
        parse_xml("<a>&e9;</a>", "it")


def test_the_deepest_document_of_an_answers_size_is_read_once() -> None:
    """Each level could be asked for what is anywhere below it."""
    level = "<networkInterfaceSet><item><attachment>", "</attachment></item></networkInterfaceSet>"
    count = ANSWER_BYTES // len("".join(level))
    with pytest.raises(TryAgain, match="no network interface with device index 0"):
        parse_interface(level[0] * count + level[1] * count)


@pytest.mark.parametrize(("said", "checked"), [("true", True), ("false", False), ("maybe", None)])
def test_the_first_interface(said: str, checked: bool | None) -> None:
    assert parse_interface(DESCRIBED.format(check=said)) == AwsInterface("eni-a", checked)
