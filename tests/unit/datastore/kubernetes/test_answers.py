"""What an API server's refusals mean."""

from __future__ import annotations

import json

import pytest

from cni_calico.datastore.http import HttpAnswer
from cni_calico.datastore.kubernetes.answers import failed_webhook, refusal
from cni_calico.errors import DatastoreForbidden

DOWN = (
    'Internal error occurred: failed calling webhook "rbac.example.org": failed to call webhook: Post "https://x/rbac"'
)


@pytest.mark.parametrize(
    ("message", "details"),
    [
        ('ippools.projectcalico.org is forbidden: User "a" cannot list', "grant it: the roles"),
        ('admission webhook "tiered-rbac.projectcalico.org" denied the request: no', "an admission webhook"),
        (
            "tiers \"default\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied",
            "an admission policy",
        ),
    ],
)
def test_who_forbids_it_is_said(message: str, details: str) -> None:
    error = refusal(HttpAnswer(403, {}, json.dumps({"message": message}).encode()), "write a record")
    assert isinstance(error, DatastoreForbidden) and message in error.message
    assert error.details.startswith(details)


@pytest.mark.parametrize(("text", "name"), [(DOWN, "rbac.example.org"), ("failed calling", ""), ("", "")])
def test_the_webhook_that_could_not_be_called(text: str, name: str) -> None:
    assert failed_webhook(text) == name
