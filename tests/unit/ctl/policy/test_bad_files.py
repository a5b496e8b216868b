"""Files that are no policies are refused by each command about changes, before anything is judged."""

import io
import os
import sys
from contextlib import suppress

import pytest

from cni_calico.ctl import main
from cni_calico.ctl.main import run
from tests.unit.ctl.policy.shop import POLICIES, endpoints_file, flow, policy, write, write_flows

EXPECTED = {
    **{"apiVersion": "cni-calico.dev/v1", "kind": "PolicyTest", "namespace": "shop"},
    "expectations": [{"from": "web-1", "to": "db-0", "port": 5432, "expect": "allowed"}],
}
WORDS = {
    **dict.fromkeys(("diff", "replay"), "--with new.yaml"),
    **{"recommend": "-n shop", "test": "expected.yaml"},
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


@pytest.mark.parametrize(
    "words",
    [
        *(f"policy {command} {words}" for command, words in WORDS.items()),
        *("diff -f new.yaml", "cluster rehearse --with .", "--context here policy diff --with new.yaml"),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError, RecursionError, MemoryError, OSError])
def test_an_exception_finds_no_difference(monkeypatch, capsys, words, error):
    """Python's own end by an exception has the status 1."""

    def fail(*_):
        raise error("nobody thought of it")

    monkeypatch.setattr(main, "_run_command", fail)
    assert run(words.split(), {}) == 2
    assert "nobody thought of it" in capsys.readouterr().err


def _output(where):
    if where == "full":
        return open("/dev/full", "w")
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("where", ["full", "gone"])
def test_an_answer_that_cannot_be_told_is_trouble(tmp_path, monkeypatch, changes, where):
    """A full disk, or a reader that has ended, whatever the answer is."""
    old, pods = write(tmp_path / "old.yaml", POLICIES["database"]), endpoints_file(tmp_path)
    new = write(tmp_path / "new.yaml", *([] if changes else [POLICIES["database"]]))
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    monkeypatch.setattr(told, "close", lambda: None, raising=False)
    code = None
    with suppress(OSError), _output(where) as output:
        monkeypatch.setattr(sys, "stdout", output)  # what is left in it cannot be written either, at its end
        code = run(["policy", "diff", "--dir", old, "--with", new, "--endpoints", pods], {})
    assert code == 2
    said = "cannot write the answer to standard output: No space left on device\n"
    assert told.getvalue() == (said if where == "full" else "")


@pytest.mark.parametrize("command", ["diff", "replay", "recommend"])
def test_nobody_to_compare_for(tmp_path, capsys, command):
    """Without workloads nothing would ever change."""
    old, flows = write(tmp_path / "old.yaml"), write_flows(tmp_path / "flows.jsonl", flow("web-1", "db-0"))
    new = write(tmp_path / "new.yaml", POLICIES["database"])
    words = {"diff": ("--with", new), "replay": ("--with", new, "--flows", flows), "recommend": ("--flows", flows)}
    for endpoints in ((), ("--endpoints", old)):
        assert run(["policy", command, "--dir", old, *words[command], *endpoints], {}) == 2
        out, err = capsys.readouterr()
        assert out == "" and "no workload and no host endpoint: give them with --endpoints" in err


@pytest.mark.parametrize("command", ["diff", "replay", "test"])
def test_a_directory_of_nothing(tmp_path, capsys, command):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "policy.txt").write_text("kind: NetworkPolicy")
    old, new = write(tmp_path / "old.yaml"), str(tmp_path / "new")
    sides = ("--with", new, "--endpoints", endpoints_file(tmp_path))
    words = {
        "diff": ("--dir", old, *sides),
        "replay": ("--dir", old, *sides, "--flows", write_flows(tmp_path / "flows.jsonl", flow("web-1", "db-0"))),
        "test": (write(tmp_path / "expected.yaml", EXPECTED), "--alone", *sides),
    }
    assert run(["policy", command, *words[command]], {}) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"cannot read {new}: no file in it has a name that ends with .yaml" in err
