"""AWS' answers: documents of XML, and errors.

Rule: an error says AWS' own code and words, and what helps: a right, or the clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from cni_calico.errors import TryAgain
from cni_calico.nodeagent.aws.web import AwsAnswer

PASSING = frozenset(("InternalError", "InternalFailure", "RequestLimitExceeded", "ServiceUnavailable", "Unavailable"))
_DENIED = ("UnauthorizedOperation", "AccessDenied")
_CLOCK = ("RequestExpired", "AuthFailure", "SignatureDoesNotMatch", "RequestTimeTooSkewed")
_RIGHTS = "the node's role needs ec2:DescribeInstances and ec2:ModifyNetworkInterfaceAttribute"


@dataclass(frozen=True, slots=True)
class AwsFailure:
    """``passes``: the same request may succeed in a second."""

    error: TryAgain
    passes: bool


@dataclass(frozen=True, slots=True)
class AwsInterface:
    """The instance's first network interface; ``checked``: as AWS checks sources and destinations; None: not said."""

    id: str
    checked: bool | None


def parse_xml(text: str, what: str) -> Element:
    """Raises TryAgain. ``text``: of an answer, which has at most ANSWER_BYTES. A document with a DTD is none of AWS',
    and not parsed: its entities could expand without end, or name files.
    """
    if "<!" in text:
        raise TryAgain(f"cannot read {what}: it has a DTD")
    try:
        return ElementTree.fromstring(text)  # noqa: S314  # without a DTD there are no entities
    except (ElementTree.ParseError, ValueError) as e:
        raise TryAgain(f"cannot read {what}: {e}") from e


def find_text(element: Element, name: str) -> str:
    """The text of the first element of this name at any depth, whatever its namespace; "" if there is none."""
    return next((_text(found) for found in element.iter() if _name(found) == name), "")


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def parse_interface(text: str) -> AwsInterface:
    """The interface with device index 0 of an answer to DescribeInstances. Raises TryAgain."""
    what = "what EC2 says of this instance"
    sets = (found for found in parse_xml(text, what).iter() if _name(found) == "networkInterfaceSet")
    for item in (item for found in sets for item in found):
        own = {_name(child): child for child in item}
        attachment = {_name(child): child for child in own.get("attachment", ())}
        interface = _text(own.get("networkInterfaceId"))
        if interface and _text(attachment.get("deviceIndex")) == "0":
            return AwsInterface(interface, {"true": True, "false": False}.get(_text(own.get("sourceDestCheck"))))
    raise TryAgain(f"cannot read {what}: it has no network interface with device index 0")


def _text(element: Element | None) -> str:
    return "" if element is None else (element.text or "").strip()


def failure_of(answer: AwsAnswer, doing: str) -> AwsFailure:
    code, message = _element(answer.text, "Code"), _element(answer.text, "Message")
    said = ": ".join(filter(None, (code, message))) or f"status {answer.status}"
    details = ""
    if code.startswith(_DENIED) or (answer.status == 403 and code not in _CLOCK):
        details = _RIGHTS
    elif code in _CLOCK:
        details = f"AWS' clock said {answer.date or 'nothing'}: this host's must not differ by more than 5 minutes"
    return AwsFailure(TryAgain(f"cannot {doing}: {said}", details=details), code in PASSING)


def _element(text: str, name: str) -> str:
    found = re.search(f"<{name}>([^<]*)</{name}>", text[:65536])
    return found.group(1).strip()[:500] if found else ""
