"""Signatures, compared with those of AWS' own test suite."""

from __future__ import annotations

from cni_calico.nodeagent.aws.signing import AwsCredentials, render_form, sign_post

EXAMPLE = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


def test_a_form_that_aws_has_signed() -> None:
    """``post-x-www-form-urlencoded`` of the suite."""
    headers = sign_post(
        "https://example.amazonaws.com/",
        render_form({"Param1": "value1"}),
        EXAMPLE,
        region="us-east-1",
        service="service",
        timestamp="20150830T123600Z",
    )
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date, "
        "Signature=ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"
    )


def test_what_a_form_may_contain() -> None:
    assert render_form({"b": "a b/c+ü~", "a.1": "=&"}) == "a.1=%3D%26&b=a%20b%2Fc%2B%C3%BC~"


def test_secrets_are_not_shown() -> None:
    assert "wJalr" not in repr(EXAMPLE) and "session" not in repr(AwsCredentials("a", "b", "session"))
