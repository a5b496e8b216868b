"""A store of which not everything can be read: no command says of what it could not judge that it is unchanged."""

import pytest

from tests.unit.ctl.policy.shop import POLICIES, flow, policy, stored, write, write_flows

EXPECTED = {
    "apiVersion": "cni-calico.dev/v1",
    "kind": "PolicyTest",
    "namespace": "shop",
    "expectations": [{"from": "web-1", "to": "db-0", "port": 5432, "expect": "allowed"}],
}
BROKEN = {
    "networkpolicies": {"spec": {"ingress": "no list"}},
    "workloadendpoints": {"spec": {"node": 5, "ipNetworks": "none"}},
    "profiles": {"spec": {"ingress": [{"action": "Perhaps"}]}},
    "tiers": {"spec": {"order": "first"}},
}


@pytest.fixture
def broken(calicoctl, tmp_path):
    """Writes the shop with a record of a kind that cannot be read, and says which."""

    def do(kind):
        tier = {"apiVersion": "projectcalico.org/v3", "kind": "Tier", "metadata": {"name": "default"}}
        profile = {"apiVersion": "projectcalico.org/v3", "kind": "Profile", "metadata": {"name": "kns.shop"}}
        records = stored([POLICIES["database"], {**tier, "spec": {"order": 1000}}, {**profile, "spec": {}}])
        path = next(path for path in records if kind in path)
        calicoctl.write({**records, path: {**records[path], **BROKEN[kind]}})

    return do


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("command", ["diff", "replay", "recommend", "test"])
def test_it_is_trouble_and_said(broken, calicoctl, tmp_path, kind, command):
    broken(kind)
    new = write(tmp_path / "new.yaml", policy("other", "app == 'none'", []))
    flows = write_flows(tmp_path / "flows.jsonl", flow("web-1", "db-0"))
    options = {
        "diff": ("--with", new),
        "replay": ("--with", new, "--flows", flows),
        "recommend": ("--namespace", "shop", "--flows", flows),
        "test": (write(tmp_path / "expected.yaml", EXPECTED),),
    }
    found = calicoctl("policy", command, *options[command])
    assert found.code == 2, (found.out, found.err)
    said = found.out + found.err
    assert any(word in said for word in ("cannot", "Uncertain", "trouble: "))
