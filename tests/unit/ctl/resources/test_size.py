"""What calicoctl says when it stores a policy that is too large, and which budget it judges by."""

from __future__ import annotations

import json

import pytest

from cni_calico.ctl.rule_budget import budget_of
from cni_calico.policy.budget import DEFAULT


def large(kind, count):
    metadata = {"name": "large", **({"namespace": "default"} if kind == "NetworkPolicy" else {})}
    spec = {"selector": "all()", "ingress": [{"action": "Deny"}] * count}
    return json.dumps({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec})


def set_budget(calicoctl, value):
    document = {"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration", "metadata": {"name": "default"}}
    text = json.dumps({**document, "spec": {"policyRuleBudget": value}})
    assert "unknown" not in calicoctl.ok("apply", "-f", "-", stdin=text)


@pytest.mark.parametrize("kind", ["GlobalNetworkPolicy", "NetworkPolicy"])
@pytest.mark.parametrize("verb", ["create", "apply", "replace"])
def test_a_command_that_stores_it_warns(calicoctl, kind, verb):
    """Of one that is larger than the cluster's budget; it is stored nevertheless."""
    set_budget(calicoctl, 3)
    if verb == "replace":
        calicoctl.ok("apply", "-f", "-", stdin=large(kind, 1))
    done = calicoctl(verb, "-f", "-", stdin=large(kind, 4))
    assert (done.code, done.err.count("Warning")) == (0, 1)
    assert f"Warning: {kind} large will deny what it governs: its rules may need 4 rules and sets" in done.err
    assert "a policy may need 3:" in done.err and "FELIX_POLICYRULEBUDGET" in done.err
    assert calicoctl("apply", "-f", "-", stdin=large(kind, 3)).err == ""


def test_without_a_setting_the_default_counts(calicoctl):
    rule = {"action": "Allow", "protocol": "TCP"}
    side = {"selector": "app == 'a'", "ports": [80, "http"]}
    document = json.loads(large("GlobalNetworkPolicy", 0))
    document["spec"]["ingress"] = [{**rule, "source": side, "destination": side}] * (DEFAULT // 16)
    done = calicoctl("apply", "-f", "-", stdin=json.dumps(document))
    assert done.code == 0 and f"may need {DEFAULT + 2} rules" in done.err and f"may need {DEFAULT}:" in done.err


@pytest.mark.parametrize("value", ["many", 0, None, [], {}])
def test_a_setting_that_agents_do_not_use_is_not_used_here(value):
    assert budget_of({"spec": {"policyRuleBudget": value}}) == DEFAULT
    assert budget_of({"spec": value}) == DEFAULT and budget_of({}) == DEFAULT
