"""Credentials for AWS, where its own programs look for them, in their order.

Rule: the environment, a service account's token (EKS), a container's agent, the instance's role. The first that is
there counts; if it cannot be used the next is not tried, or a cluster would work with rights that nobody meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from xml.etree.ElementTree import Element

from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain
from cni_calico.nodeagent.aws.documents import failure_of, find_text, parse_xml
from cni_calico.nodeagent.aws.instance import parse_credentials
from cni_calico.nodeagent.aws.signing import AwsCredentials, render_form
from cni_calico.nodeagent.aws.web import ask

_CONTAINERS = "http://169.254.170.2"
_STS_VERSION = "2011-06-15"
ReadFile = Callable[[str], str]
# of AWS' own programs, with their meaning: name, what it accepts, default, meaning
VARIABLES = (
    ("AWS_ACCESS_KEY_ID", "text", "", "Credentials, with the next one."),
    ("AWS_SECRET_ACCESS_KEY", "text", "", "Its secret."),
    ("AWS_SESSION_TOKEN", "text", "", "Of temporary credentials."),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "path", "", "A service account's token (EKS), for the role of the next one."),
    ("AWS_ROLE_ARN", "text", "", "The role to take with it."),
    ("AWS_ROLE_SESSION_NAME", "text", "calico-node", "The name of its session."),
    ("AWS_REGION", "text", "", "Where to exchange that token; empty: the instance's region."),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "path", "", "A container's agent at 169.254.170.2."),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "URL", "", "The same, anywhere."),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "text", "", "What that agent wants to see."),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "path", "", "The same, in a file."),
    ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "URL", "http://169.254.169.254", "The metadata service."),
    ("AWS_ENDPOINT_URL_EC2", "URL", "", "EC2's API; empty: the region's."),
    ("AWS_ENDPOINT_URL_STS", "URL", "", "The token service's; empty: the region's."),
    ("AWS_ENDPOINT_URL", "URL", "", "EC2's API unless the former says."),
)


def find_credentials(
    environ: Mapping[str, str],
    region: str,
    deadline: Deadline,
    *,
    read_file: ReadFile,
    of_instance: Callable[[], AwsCredentials],
) -> AwsCredentials:
    """Raises TryAgain, OSError if a file that the environment names cannot be read."""
    given = {name: text.strip() for name, text in environ.items() if name.startswith("AWS_") and text.strip()}
    key, secret = given.get("AWS_ACCESS_KEY_ID", ""), given.get("AWS_SECRET_ACCESS_KEY", "")
    if key and secret:
        return AwsCredentials(key, secret, given.get("AWS_SESSION_TOKEN", ""))
    if "AWS_WEB_IDENTITY_TOKEN_FILE" in given and "AWS_ROLE_ARN" in given:
        return _of_account(given, given.get("AWS_REGION", region), deadline, read_file)
    relative, full = (given.get(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI") for kind in ("RELATIVE", "FULL"))
    if relative or full:
        token = given.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
        if "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE" in given:
            token = read_file(given["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]).strip()
        answer = ask("GET", full or f"{_CONTAINERS}{relative}", deadline, {"Authorization": token} if token else {})
        if answer.status != 200:
            raise TryAgain(f"cannot find credentials for AWS: the container's agent answered with {answer.status}")
        return parse_credentials(answer.text, "the container's agent")
    return of_instance()


def _of_account(given: Mapping[str, str], region: str, deadline: Deadline, read_file: ReadFile) -> AwsCredentials:
    """In exchange for the token of a service account."""
    url = given.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{domain_of(region)}/"
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": _STS_VERSION,
        "RoleArn": given["AWS_ROLE_ARN"],
        "RoleSessionName": given.get("AWS_ROLE_SESSION_NAME", "calico-node"),
        "WebIdentityToken": read_file(given["AWS_WEB_IDENTITY_TOKEN_FILE"]).strip(),
    }
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = ask("POST", url, deadline, headers, render_form(form))
    if answer.status != 200:
        raise failure_of(answer, "exchange the service account's token for credentials of AWS").error
    found = parse_xml(answer.text, "the answer of AWS' token service")
    return AwsCredentials(_need(found, "AccessKeyId"), _need(found, "SecretAccessKey"), _need(found, "SessionToken"))


def _need(found: Element, name: str) -> str:
    text = find_text(found, name)
    if not text:
        raise TryAgain(f"cannot find credentials for AWS: the answer of its token service has no {name}")
    return text


def domain_of(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
