"""What selectors of policies and of their rules' peers mean, as upstream's agent reads them."""

import pytest

from cni_calico.policy.sources import peer_selector, policy_selecting
from cni_calico.policy.steps import finish

HOST = {"role": "edge"}
POD = {"projectcalico.org/namespace": "a", "pcns.team": "x"}
POD_OF_ACCOUNT = {**POD, "projectcalico.org/serviceaccount": "s", "pcsa.team": "x"}


@pytest.mark.parametrize(
    ("selector", "spaces", "accounts", "namespace", "expected"),
    [
        # a global policy: all() beside another selector does not mean host endpoints, wherever it stands
        ("all()", "", "", "", [HOST, POD, POD_OF_ACCOUNT]),
        ("all()", "team != 'y'", "", "", [POD, POD_OF_ACCOUNT]),
        ("!all()", "team != 'y'", "", "", [HOST]),
        ("", "team != 'y'", "", "", [HOST, POD, POD_OF_ACCOUNT]),
        ("", "all()", "", "", [POD, POD_OF_ACCOUNT]),
        ("all()", "", "team != 'y'", "", [POD_OF_ACCOUNT]),
        ("", "", "team != 'y'", "", [HOST, POD, POD_OF_ACCOUNT]),
        ("", "", "all()", "", [POD_OF_ACCOUNT]),
        # both: the first replacement leaves no all() of the selector to the second, which reads only what it adds
        ("all()", "team != 'y'", "team != 'y'", "", [POD, POD_OF_ACCOUNT]),
        # a policy of a namespace: all() is what it says
        ("all()", "", "all()", "a", [POD, POD_OF_ACCOUNT]),
        ("", "", "all()", "a", [POD, POD_OF_ACCOUNT]),
        ("", "", "team == 'x'", "a", [POD_OF_ACCOUNT]),
    ],
)
def test_who_is_governed(selector, spaces, accounts, namespace, expected):
    found = finish(policy_selecting(selector, spaces, accounts, namespace))
    assert [labels for labels in (HOST, POD, POD_OF_ACCOUNT) if found.matches(labels)] == expected


def test_all_of_accounts_beside_namespaces():
    """The second replacement concerns the added part, in which all() still stands."""
    found = finish(policy_selecting("", "all()", "all()", ""))
    assert found.matches(POD_OF_ACCOUNT) and not found.matches(POD)


def test_what_is_excluded_is_excluded_by_its_labels():
    found = peer_selector("has(net)", "net == 'x'", "", (), "", "")
    assert found.matches({"net": "y"}) and not found.matches({"net": "x"}) and not found.matches({})


def test_an_exclusion_alone_selects_nothing():
    assert peer_selector("", "net == 'x'", "", (), "", "") is None
