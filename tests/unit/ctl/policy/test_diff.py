"""``calicoctl policy diff``: what is said of a change, with a datastore and without one; and what is refused."""

import json
import random
from argparse import Namespace
from ipaddress import ip_address

import pytest

from cni_calico.ctl.main import run
from cni_calico.ctl.policy.changed_rows import changed_rows
from cni_calico.ctl.policy.proposed import read_proposed
from cni_calico.policy.explain import Packet, decide
from cni_calico.policy.judge.worlds import WorldPair
from tests.unit.ctl.policy.shop import POLICIES, endpoints_file, policy, stored, write


@pytest.fixture
def offline(tmp_path, capsys):
    """(exit status, output, errors) of a comparison of directories."""
    pods = endpoints_file(tmp_path)

    def compare(old, new, *options):
        for name, documents in (("old", old), ("new", new)):
            (tmp_path / name).mkdir(exist_ok=True)
            write(tmp_path / name / "all.yaml", *documents)
        capsys.readouterr()
        sides = ("--dir", str(tmp_path / "old"), "--with", str(tmp_path / "new"), "--endpoints", pods)
        code = run(["policy", "diff", *sides, *options], {})
        return code, *capsys.readouterr()

    return compare


def test_nothing_changes(offline):
    assert offline([POLICIES["database"]], [POLICIES["database"]]) == (0, "No verdict changes for anybody.\n", "")


def test_a_port_that_moves_is_denied_and_allowed(offline):
    moved = policy("database", "app == 'db'", [("app == 'web'", [5433])])
    code, out, _ = offline([POLICIES["database"]], [moved])
    denied, allowed = [line for line in out.splitlines() if "->" in line]
    assert code == 1
    assert denied.startswith("shop/app=web -> shop/app=db  ingress tcp 5432  allowed by rule 1 of NetworkPolicy")
    assert denied.endswith("->  DENIED at the end of tier default")
    assert " ingress tcp 5433  DENIED at the end of tier default  ->  allowed by rule 1" in allowed
    assert "    2 workloads x 1 workload" in out


def test_what_is_removed_from_the_new_directory_is_compared_as_gone(offline):
    code, out, _ = offline([POLICIES["database"]], [])
    assert code == 1
    assert "any protocol  DENIED at the end of tier default  ->  allowed by rule 1 of Profile kns.shop" in out


def test_the_other_end_may_deny_what_is_allowed_now(offline):
    closed = policy("closed", "app == 'web'", [], types=["Egress"])
    opened = policy("database", "app == 'db'", [("app == 'web'", [5432, 5433])])
    _, out, _ = offline([POLICIES["database"], closed], [opened, closed])
    assert "2 workloads x 1 workload; egress of the other end denies it all the same" in out


def test_findings(offline):
    odd = policy("odd", "app == 'db'", [("app == 'web'", [5432]), ("app == 'web'", [5432]), ("app == 'gone'", [1])])
    nobody = policy("nobody", "app == 'none'", [("app == 'web'", [1])])
    code, out, _ = offline([POLICIES["database"]], [POLICIES["database"], odd, nobody], "-o", "json")
    found = {(one["what"], one["policy"], one.get("rule")) for one in json.loads(out)["findings"]}
    assert code == 0  # the same verdicts
    assert found == {
        ("withoutEndpoint", "NetworkPolicy shop/nobody", None),
        ("emptySelector", "NetworkPolicy shop/odd", 3),
        ("shadowed", "NetworkPolicy shop/odd", 1),
        ("shadowed", "NetworkPolicy shop/odd", 2),
    }


def test_a_network_set_changes_whom_a_rule_lets_in(offline):
    rule = policy("database", "app == 'db'", [("role == 'partner'", [5432])])
    sets = [
        {
            **{"apiVersion": "projectcalico.org/v3", "kind": "NetworkSet"},
            "metadata": {"name": "partners", "namespace": "shop", "labels": {"role": "partner"}},
            "spec": {"nets": nets},
        }
        for nets in (["192.0.2.0/25"], ["192.0.2.0/24"])
    ]
    code, out, _ = offline([rule, sets[0]], [rule, sets[1]])
    assert code == 1
    assert out.splitlines()[0].startswith("192.0.2.0/24 (shop/partners) -> shop/app=db  ingress tcp 5432  DENIED")


def test_a_directory_that_is_missing_is_refused(capsys):
    assert run(["policy", "diff", "--dir", "/nonexistent", "--with", "/nonexistent"], {}) == 2
    assert "No such file or directory" in capsys.readouterr().err


def test_with_a_datastore_a_file_is_applied_to_what_is_stored(calicoctl, tmp_path):
    calicoctl.write(stored([POLICIES["database"]]))
    file = write(tmp_path / "new.yaml", policy("database", "app == 'db'", []))
    found = calicoctl("policy", "diff", "--with", file)
    assert found.code == 1, found
    assert "shop/app=web -> shop/app=db  ingress tcp 5432  allowed" in found.out
    write(tmp_path / "same.yaml", POLICIES["database"])
    assert calicoctl.ok("policy", "diff", "--with", str(tmp_path / "same.yaml")).startswith("No verdict changes")


def test_prune_takes_away_what_the_files_lack(calicoctl, tmp_path):
    calicoctl.write(stored([POLICIES["database"], policy("other", "app == 'db'", [("app == 'cache'", [1])])]))
    file = write(tmp_path / "new.yaml", POLICIES["database"])
    found = calicoctl("policy", "diff", "--with", file, "--prune")
    assert found.code == 1 and "shop/app=cache -> shop/app=db  ingress tcp 1  allowed by rule 1" in found.out
    assert calicoctl("policy", "diff", "--with", file).code == 0


def test_what_cannot_be_read_is_uncertain_and_never_unchanged(calicoctl, tmp_path):
    records = stored([POLICIES["database"]])
    path = next(path for path in records if "networkpolicies" in path)
    broken = {**records[path], "spec": {"ingress": "no list"}}
    calicoctl.write({**records, path: broken})
    file = write(tmp_path / "new.yaml", policy("other", "app == 'none'", []))
    found = calicoctl("policy", "diff", "--with", file)
    assert found.code == 2
    assert "No verdict changes for anybody, as far as could be judged." in found.out
    assert "Uncertain: NetworkPolicy shop/database" in found.out


def test_staged_policies_are_said_to_enforce_nothing(calicoctl, tmp_path):
    calicoctl.write(stored([]))
    file = write(tmp_path / "new.yaml", {**POLICIES["database"], "kind": "StagedNetworkPolicy"})
    found = calicoctl("policy", "diff", "--with", file)
    assert found.code == 0 and "enforces nothing" in found.err


def concerns(row, port):
    """Whether a line is about TCP to a port."""
    tcp = (piece.firsts for protocol, piece in row.pieces if protocol == 6)
    return row.traffic.startswith("any protocol") or any(low <= port <= high for low, high in tcp)


def test_a_changed_verdict_is_what_decide_says(calicoctl, tmp_path):
    """Every pair of workloads with random ports, of random changes."""
    chosen = random.Random(36)
    pods = endpoints_file(tmp_path)
    for number in range(12):
        sides = []
        for side in ("old", "new"):
            (tmp_path / f"{side}{number}").mkdir()
            drawn = [
                policy(
                    f"p{n}",
                    f"app == '{chosen.choice(('db', 'web', 'cache'))}'",
                    [(f"app == '{chosen.choice(('web', 'cache'))}'", [chosen.randrange(1, 6)])] * chosen.randrange(2),
                    types=[chosen.choice(("Ingress", "Egress"))],
                    order=chosen.randrange(3),
                )
                for n in range(3)
            ]
            sides.append(str(tmp_path / f"{side}{number}"))
            write(tmp_path / f"{side}{number}" / "all.yaml", *drawn)
        asked = Namespace(overlay=[sides[1]], directory=sides[0], endpoints=[pods], stdin="", namespace="", warn=print)
        asked.without = []
        change = read_proposed(None, asked)
        rows = changed_rows(WorldPair(change.before, change.after))
        for source, one in change.before.endpoints.items():
            for destination, other in change.before.endpoints.items():
                for port in range(1, 6):
                    packet = Packet(*(ip_address(end.addresses[0]) for end in (one, other)), 6, 40000, port)
                    for direction, own in (("ingress", destination), ("egress", source)):
                        was, now = (decide(w, own, direction, packet).verdict for w in (change.before, change.after))
                        its = [row for row in rows if source in row.sources and destination in row.destinations]
                        said = [row for row in its if row.direction == direction and concerns(row, port)]
                        assert bool(said) == (was != now), (source, destination, port, direction)


def test_a_change_from_standard_input(calicoctl):
    calicoctl.write(stored([POLICIES["database"]]))
    moved = json.dumps(policy("database", "app == 'db'", [("app == 'web'", [5433])]))
    found = calicoctl("policy", "diff", "--with", "-", stdin=moved)
    assert found.code == 1 and "ingress tcp 5432  allowed" in found.out
    assert calicoctl("policy", "diff", "--with", "-", stdin=json.dumps(POLICIES["database"])).code == 0
    refused = calicoctl("policy", "diff", "--with", "-", stdin="kind: Pod\n")
    assert refused.code == 2 and "cannot use standard input" in refused.err
    assert calicoctl("policy", "diff", "--with", "-", stdin="a: [").code == 2
