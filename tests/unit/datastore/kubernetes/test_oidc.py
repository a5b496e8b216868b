"""Which auth-provider sections are used, and what an unusable one is told."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.kubernetes.oidc import MARGIN_S, oidc_token
from cni_calico.errors import DatastoreDenied

NOW = 1_700_000_000


def token_of(claims: Any) -> str:
    return f"e30.{urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


def provider(token: Any) -> dict[str, Any]:
    return {"name": "oidc", "config": {"id-token": token, "refresh-token": "s3cret"}}


@given(st.integers(0, 2 * NOW), st.text(max_size=9))
def test_it_is_used_while_it_is_valid(expires: int, name: str) -> None:
    token = token_of({"sub": name, "exp": expires})
    if expires >= NOW + MARGIN_S:
        assert oidc_token(provider(token), "k", NOW) == token
    else:
        with pytest.raises(DatastoreDenied, match="has expired") as found:
            oidc_token(provider(token), "k", NOW)
        assert "kubectl" in found.value.details


@pytest.mark.parametrize("token", ["s3cret", "a.b.c", "a.e30.c", token_of([]), token_of({"exp": "s3cret"}), "..", "."])
def test_what_is_no_token_is_not_shown(token: str) -> None:
    with pytest.raises(
        DatastoreDenied, match="cannot use kubeconfig /k: its id-token is not a JSON Web Token"
    ) as found:
        oidc_token(provider(token), "/k", NOW)
    assert "s3cret" not in str(found.value)


@pytest.mark.parametrize("wrong", [None, 1, "", {"a": 1}])
def test_without_a_token(wrong: Any) -> None:
    for section in (provider(wrong), {"name": "oidc"}, {"name": "oidc", "config": []}):
        with pytest.raises(DatastoreDenied, match="has no id-token"):
            oidc_token(section, "k", NOW)


@pytest.mark.parametrize("section", [{"name": "gcp"}, {"name": "azure", "config": {}}, {}, "oidc", []])
def test_other_providers_are_gone(section: Any) -> None:
    with pytest.raises(DatastoreDenied, match="auth-provider") as found:
        oidc_token(section, "k", NOW)
    assert "exec" in found.value.details
