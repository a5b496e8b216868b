"""What calicoctl says about a policy that is too large."""

from __future__ import annotations

from cni_calico.ctl.resources.size import describe_too_large
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.budget import DEFAULT

KEY = ResourceKey("GlobalNetworkPolicy", "large")


def said(count: int) -> str:
    spec = {"selector": "all()", "ingress": [{"action": "Deny"}] * count}
    return describe_too_large(KEY, {"kind": KEY.kind, "metadata": {"name": KEY.name}, "spec": spec})


def test_its_name_its_size_and_the_budget() -> None:
    assert said(DEFAULT) == ""
    text = said(DEFAULT + 1)
    assert "large" in text and str(DEFAULT + 1) in text and str(DEFAULT) in text and "FELIX_POLICYRULEBUDGET" in text
