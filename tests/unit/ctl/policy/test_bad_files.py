"""Files that are no policies are refused by each command about changes, before anything is judged."""

import pytest

from cni_calico.ctl.main import run
from tests.unit.ctl.policy.shop import POLICIES, endpoints_file, flow, policy, write, write_flows

EXPECTED = {
    **{"apiVersion": "cni-calico.dev/v1", "kind": "PolicyTest", "namespace": "shop"},
    "expectations": [{"from": "web-1", "to": "db-0", "port": 5432, "expect": "allowed"}],
}
BAD = [
    ([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}], "unknown resource type"),
    ([{"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "n"}}], "only policies"),
    ([{**POLICIES["database"], "apiVersion": "crd.projectcalico.org/v1"}], "unknown resource type"),
    ([policy("lost", "all()", [], tier="absent")], "there is no tier absent"),
    ([{"kind": "NetworkPolicy"}], "unknown resource type"),
    ([policy("database", "app ==", [])], "selector"),
    ([POLICIES["database"], POLICIES["database"]], "again in"),
]


@pytest.mark.parametrize("command", ["diff", "replay", "recommend", "test"])
@pytest.mark.parametrize(("documents", "why"), BAD)
def test_they_are_refused(tmp_path, capsys, command, documents, why):
    for name, its in (("old", []), ("new", documents)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "all.yaml", *its)
    old, new, pods = str(tmp_path / "old"), str(tmp_path / "new"), endpoints_file(tmp_path)
    flows = write_flows(tmp_path / "flows.jsonl", flow("web-1", "db-0"))
    words = {
        "diff": ("--dir", old, "--with", new),
        "replay": ("--dir", old, "--with", new, "--flows", flows),
        "recommend": ("--namespace", "shop", "--dir", new, "--flows", flows),
        "test": (write(tmp_path / "expected.yaml", EXPECTED), "--with", new, "--alone"),
    }
    assert run(["policy", command, *words[command], "--endpoints", pods], {}) == 2
    out, err = capsys.readouterr()
    assert out == "" and why in err and "cannot use" in err


@pytest.mark.parametrize(
    "words",
    [
        *(f"policy {command} --nonsense" for command in ("diff", "replay", "recommend", "test")),
        *("policy diff --with", "policy test", "cluster rehearse", "diff --nonsense", "diff"),
        "--context here policy diff --nonsense",
    ],
)
def test_a_command_line_that_is_wrong_finds_no_difference(capsys, words):
    """1 would say that something changes."""
    assert run(words.split(), {}) == 2
    out, err = capsys.readouterr()
    assert out == "" and err
