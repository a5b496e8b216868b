"""Which resources the words of a command line name."""

import pytest

from cni_calico.ctl.input.targets import parse_target, parse_targets
from cni_calico.errors import InvalidConfig

P, N = "IPPool", "Node"


@pytest.mark.parametrize(
    ("words", "kinds", "named"),
    [
        ("", [], []),
        ("ippool", [P], []),
        ("pools,nodes", [P, N], []),
        ("pool,ippool", [P], []),
        ("ippool a b", [], [(P, "a"), (P, "b")]),
        ("ippool a,b c", [], [(P, "a"), (P, "b"), (P, "c")]),
        ("ippool,node a", [], [(P, "a"), (N, "a")]),
        ("ippool/a", [], [(P, "a")]),
        ("ippool/a,no/b NODE/c", [], [(P, "a"), (N, "b"), (N, "c")]),
        ("ippool a/b", [], [(P, "a/b")]),  # no resource can have that name: said when it is looked for
    ],
)
def test_what_is_named(words, kinds, named):
    assert parse_targets(words.split()) == (kinds, named)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ippool/a", "b"], "every resource must be named as KIND/NAME"),
        (["ippool/"], "resource name may not be empty"),
        (["ippool", ""], "resource name may not be empty"),
        (["ippool", "a,"], "resource name may not be empty"),
        (["/a"], "resource type ''"),
        (["ippol/a"], "resource type 'ippol'"),
        (["ippool,"], "resource type ''"),
    ],
)
def test_what_is_refused(words, said):
    with pytest.raises(InvalidConfig, match=said):
        parse_targets(words)


def test_exactly_one():
    assert parse_target(["node/a"], "patch") == (N, "a")
    for words in ([], ["node"], ["node", "a", "b"]):
        with pytest.raises(InvalidConfig, match="cannot patch: name one resource"):
            parse_target(words, "patch")
