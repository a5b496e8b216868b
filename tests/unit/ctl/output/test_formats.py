"""Formats of every command that has something to say, and how tables look on a terminal and in a pipe."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import yaml

from cni_calico.ctl.command_line.arguments import build_parser, leaves
from cni_calico.ctl.main import run
from cni_calico.ctl.output.looks import BAD, DIM, GOOD, PLAIN, tone_of
from cni_calico.ctl.output.terminal import TerminalLook
from tests.conftest import ROOT
from tests.unit.ctl.conftest import pool, resource

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
SAYING = ("ipam show", "cluster status", "cluster check", "node status", "version", "policy show", "policy explain")


def test_every_command_that_says_something_has_the_formats():
    found = dict(leaves(build_parser()))
    helps = {name: {text: a.help for a in found[name]._actions for text in a.option_strings} for name in SAYING}
    assert [name for name in SAYING if "json|yaml|jsonpath=" not in helps[name]["--output"]] == []


@pytest.mark.parametrize("words", ["ipam show", "ipam show --show-configuration", "ipam show --show-borrowed"])
def test_of_addresses(cluster, words):
    document = json.loads(cluster.ok(*words.split(), "-o", "json"))
    assert yaml.safe_load(cluster.ok(*words.split(), "-o", "yaml")) == document
    assert json.loads(cluster.ok(*words.split(), "-o", "jsonpath-as-json={$}")) == [document]


def test_a_path(cluster):
    usage = json.loads(cluster.ok("ipam", "show", "-o", "json"))
    assert cluster.ok("ipam", "show", "-o", "jsonpath={.pools[0].cidr}") == usage["pools"][0]["cidr"]
    assert "unrecognized output format 'jsn': known are table, json" in cluster.fails("ipam", "show", "-o", "jsn")
    assert "need to specify what jsonpath selects" in cluster.fails("ipam", "show", "-o", "jsonpath=")


def test_of_the_cluster(calicoctl):
    calicoctl.apply(pool("a", "10.1.0.0/16"))
    found = json.loads(calicoctl.ok("cluster", "status", "-o", "json"))
    assert found["pools"][0] | {"name": "a", "cidr": "10.1.0.0/16", "used": 0, "share": 0} == found["pools"][0]
    assert found["wrong"] == []
    calicoctl.ok("delete", "ippool", "a")
    failed = calicoctl("cluster", "status", "-o", "jsonpath={.wrong[0]}")
    assert (failed.code, failed.out) == (1, "there is no IP pool that can be used")


def test_of_a_host_where_nothing_runs(tmp_path, capsys):
    assert run(["node", "status", "-o", "json"], {"CALICO_RUN_DIR": str(tmp_path)}) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ready"] is False and "has not started" in found["why"] and "cannot connect" in found["bird"]["error"]


def test_of_versions(calicoctl):
    assert calicoctl.ok("version", "--client", "-o", "jsonpath={.client.version}").startswith("v3.")
    calicoctl.apply(pool("a", "10.1.0.0/16"))
    assert set(json.loads(calicoctl.ok("version", "-o", "json"))) == {"client", "cluster"}


class TestGet:
    @pytest.fixture(autouse=True)
    def two(self, calicoctl):
        calicoctl.apply(pool("a", "10.1.0.0/16", nodeSelector="zone == 'x'"))
        calicoctl.apply(pool("b", "10.2.0.0/16"))

    def test_paths(self, calicoctl):
        assert calicoctl.ok("get", "ippools", "-o", "jsonpath={.items[*].spec.cidr}") == "10.1.0.0/16 10.2.0.0/16"
        assert calicoctl.ok("get", "ippool", "b", "-o", "jsonpath={.spec.cidr}") == "10.2.0.0/16"
        assert calicoctl.ok("get", "ippool", "b", "a", "-o", "jsonpath={.items[*].metadata.name}") == "b a"
        assert calicoctl.ok("get", "ippools,tiers", "-o", "jsonpath={.items[*].kind}").split().count("Tier") == 3

    def test_a_path_from_a_file(self, calicoctl, tmp_path):
        (tmp_path / "t").write_text('{range .items[*]}{.metadata.name}{"\\n"}{end}')
        assert calicoctl.ok("get", "ippools", "-o", f"jsonpath-file={tmp_path}/t") == "a\nb\n"
        assert "cannot read template" in calicoctl.fails("get", "ippools", "-o", "jsonpath-file=/does/not/exist")

    def test_columns_of_any_field(self, calicoctl):
        columns = "POOL:.metadata.name,WHERE:{.spec.nodeSelector},NOT:.spec.nothing"
        rows = [
            line.split("   ") for line in calicoctl.ok("get", "ippools", "-o", f"custom-columns={columns}").split("\n")
        ]
        assert [[cell.strip() for cell in row if cell.strip()] for row in rows[:3]] == [
            ["POOL", "WHERE", "NOT"],
            ["a", "zone == 'x'", "<none>"],
            ["b", "all()", "<none>"],
        ]

    @pytest.mark.parametrize("columns", ["NAME:", ":.x", "A:.x,B", "A:.x["])
    def test_columns_that_are_none(self, calicoctl, columns):
        assert "cannot " in calicoctl.fails("get", "ippools", "-o", f"custom-columns={columns}")


class TestTerminal:
    def on_terminal(self, calicoctl, width, *argv, **environ):
        """What the program writes to a terminal of this width."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        command = [sys.executable, "-m", "cni_calico.ctl.main", "-c", str(calicoctl.config), *argv]
        env = {"PATH": "/usr/bin", "TERM": "xterm", **environ}
        with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, cwd=ROOT, env=env):
            os.close(theirs)
            data = b""
            while True:
                try:
                    more = os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
                if not more:
                    break
                data += more
        os.close(ours)
        return data.decode().replace("\r\n", "\n")

    @pytest.fixture
    def wide(self, calicoctl):
        calicoctl.apply(pool("a", "10.1.0.0/16", nodeSelector=" || ".join(f"zone == 'z{i}'" for i in range(20))))
        calicoctl.apply(resource("Tier", "t", {"order": 5}))
        return calicoctl

    @pytest.mark.parametrize("width", [50, 80])
    def test_a_table_that_does_not_fit_is_wrapped(self, wide, width):
        piped = wide.ok("get", "ippools")
        assert max(map(len, piped.splitlines())) > width
        shown = self.on_terminal(wide, width, "get", "ippools")
        lines = ESCAPE.sub("", shown).splitlines()
        assert max(map(len, lines)) <= width
        assert "z19" in "".join(lines) and "\x1b[1m" in shown

    def test_one_that_fits_is_the_same_with_colours(self, wide):
        piped = wide.ok("get", "tiers")
        shown = self.on_terminal(wide, 80, "get", "tiers")
        assert shown != piped and "\x1b[1m" in shown
        plain = self.on_terminal(wide, 80, "get", "tiers", NO_COLOR="1")
        assert [line.split() for line in plain.splitlines()] == [line.split() for line in piped.splitlines()]
        assert ESCAPE.sub("", shown) == plain

    def test_boxes_fit_too(self, wide):
        shown = self.on_terminal(wide, 40, "ipam", "show")
        assert max(len(line) for line in ESCAPE.sub("", shown).splitlines()) <= 40

    @pytest.mark.parametrize("words", ["get ippools", "ipam show", "cluster status"])
    def test_nothing_of_it_in_a_pipe(self, wide, words):
        assert "\x1b" not in wide(*words.split()).out


ROWS = [["worker-1.example.org", "172.16.0.1/24,fd00:1::1/64", "up: since noon", "2"] for _ in range(3)]


@pytest.mark.parametrize("width", [1, 20, 45, 62, 63, 80])
def test_nothing_is_lost_however_narrow(width):
    shown = TerminalLook(width, colourful=False).columns(("NODE", "ADDRESSES", "STATE", "N"), ROWS)
    assert max(map(len, shown.splitlines())) <= max(width, 20)
    cells = "".join("".join(row) for row in (("NODE", "ADDRESSES", "STATE", "N"), *ROWS))
    assert sorted(shown.replace(" ", "").replace("\n", "")) == sorted(cells.replace(" ", ""))


def test_words_and_items_stay_whole_where_there_is_room():
    shown = TerminalLook(62, colourful=False).columns(("NODE", "ADDRESSES", "STATE", "N"), ROWS[:1])
    assert [line.split() for line in shown.splitlines()[:3]] == [
        ["NODE", "ADDRESSES", "STATE", "N"],
        ["worker-1.example.org", "172.16.0.1/24,", "up:", "since", "noon", "2"],
        ["fd00:1::1/64"],
    ]


def test_tones():
    assert [tone_of(text) for text in ("yes", "no: kubelet", "-", "10.0.0.1", "nobody")] == [GOOD, BAD, DIM, "", ""]
    assert PLAIN.toned("no", BAD) == "no"
    look = TerminalLook(80, colourful=True)
    assert look.toned("no", BAD) == "\x1b[31mno\x1b[0m"
    assert TerminalLook(80, colourful=False).toned("no", BAD) == "no"
