"""What the metadata service says of this instance: its ID, its region, its role's credentials.

Rule: only the second version, with a token; the first answers anybody who can have a request sent from here. Source:
AWS' documentation of IMDS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain
from cni_calico.nodeagent.aws.signing import AwsCredentials
from cni_calico.nodeagent.aws.web import AwsAnswer, ask

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_ENDPOINT = "http://169.254.169.254"
_TOKEN_S = "300"
_HEADER = "X-aws-ec2-metadata-token"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_HOPS = (
    "this is no instance of EC2, or its metadata service is off, or answers do not come this far: its hop limit must "
    "be at least 2 where the agent is not on the host's network"
)


@dataclass(frozen=True, slots=True)
class AwsInstance:
    id: str
    region: str


class InstanceMetadata:
    """Of this instance, with one token. Raises TryAgain."""

    def __init__(self, environ: Mapping[str, str], deadline: Deadline) -> None:
        self._at = (environ.get(ENDPOINT_VARIABLE, "").strip() or _ENDPOINT).rstrip("/")
        self._deadline = deadline
        try:
            answer = ask("PUT", f"{self._at}/latest/api/token", deadline, {f"{_HEADER}-ttl-seconds": _TOKEN_S})
        except TryAgain as e:
            raise TryAgain(f"cannot read the metadata of this instance: {e}", details=_HOPS) from e
        self._token = _expect(answer, "a token").strip()

    def read_instance(self) -> AwsInstance:
        identity = parse_object(self._get("/latest/dynamic/instance-identity/document"), "the instance's identity")
        found = identity.get("instanceId")
        if not isinstance(found, str) or not found:
            raise TryAgain("cannot read the metadata of this instance: its identity has no instanceId")
        return AwsInstance(found, self._get("/latest/meta-data/placement/region").strip())

    def read_credentials(self) -> AwsCredentials:
        """Of the instance's role."""
        roles = self._get(_ROLES).split()
        if not roles:
            raise TryAgain("cannot find credentials for AWS: this instance has no role")
        return parse_credentials(self._get(f"{_ROLES}{roles[0]}"), "the role of this instance")

    def _get(self, path: str) -> str:
        return _expect(ask("GET", f"{self._at}{path}", self._deadline, {_HEADER: self._token}), path)


def parse_object(text: str, what: str) -> dict[str, Any]:
    """Raises TryAgain."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise TryAgain(f"cannot read {what}: it is no JSON") from e
    if not isinstance(found, dict):
        raise TryAgain(f"cannot read {what}: it is no object")
    return found


def parse_credentials(text: str, what: str) -> AwsCredentials:
    """As the metadata service and containers' agents write them. Raises TryAgain."""
    found = parse_object(text, what)
    key, secret, session = (found.get(name) for name in ("AccessKeyId", "SecretAccessKey", "Token"))
    if not (isinstance(key, str) and isinstance(secret, str) and key and secret):
        raise TryAgain(f"cannot find credentials for AWS: {what} gives none")
    return AwsCredentials(key, secret, session if isinstance(session, str) else "")


def _expect(answer: AwsAnswer, what: str) -> str:
    if answer.status != 200:
        raise TryAgain(f"cannot read the metadata of this instance: {what} was answered with status {answer.status}")
    return answer.text
