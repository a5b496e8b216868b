"""What calicoctl says about itself: help with examples, completion, and what was probably meant."""

import os
import shlex
import subprocess
from argparse import SUPPRESS, _HelpAction

import pytest

from cni_calico.ctl.command_line.arguments import SHELLS, build_parser, leaves, parse_arguments
from cni_calico.ctl.command_line.completion import render_completion
from cni_calico.ctl.command_line.help_texts import COMMANDS, PROGRAM
from cni_calico.ctl.main import run
from cni_calico.errors import InvalidConfig

PARSER = build_parser()
LEAVES = dict(leaves(PARSER))
COMMON = {text for action in PARSER._actions for text in action.option_strings}


def own_options(parser):
    for action in parser._actions:
        if action.option_strings and not isinstance(action, _HelpAction) and not COMMON & set(action.option_strings):
            yield action


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_everything_is_described(name):
    undescribed = [action.dest for action in LEAVES[name]._actions if not action.help]
    assert undescribed == []
    assert COMMANDS[name].examples


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_every_option_occurs_in_an_example(name):
    used = {word.partition("=")[0] for line, _ in COMMANDS[name].examples for word in shlex.split(line)}
    shown = [action for action in own_options(LEAVES[name]) if action.help != SUPPRESS]
    assert [a.option_strings for a in shown if not used & set(a.option_strings)] == []


def test_every_common_option_occurs_in_an_example_of_the_program():
    used = {word for line, _ in PROGRAM.examples for word in shlex.split(line)}
    actions = [a for a in PARSER._actions if a.option_strings and not isinstance(a, _HelpAction)]
    assert [a.option_strings for a in actions if not used & set(a.option_strings)] == []


@pytest.mark.parametrize("name", ["", *sorted(LEAVES)])
def test_the_examples_are_command_lines(name):
    for line, what in (COMMANDS[name] if name else PROGRAM).examples:
        arguments = parse_arguments(shlex.split(line.partition(" > ")[0]))
        words = (arguments.command, vars(arguments).get("group"), vars(arguments).get("subcommand"))
        assert not name or " ".join(dict.fromkeys(filter(None, words))) == name
        assert what and not what.endswith(".")


def test_help_shows_the_examples(capsys):
    with pytest.raises(SystemExit):
        run(["ipam", "release", "--help"], {}, "kubectl calico")
    out = capsys.readouterr().out
    assert "Release addresses that nobody uses." in out
    assert "  # one address\n  kubectl calico ipam release --ip=10.244.1.7\n" in out


@pytest.mark.parametrize(
    ("line", "said", "details"),
    [
        ("gett nodes", "there is no command 'gett': did you mean get?", ""),
        ("ipam shwo", "there is no command 'shwo': did you mean show?", ""),
        ("quux", "there is no command 'quux': known are get, create,", ""),
        ("get nodes --exprt", "calicoctl get: there is no option '--exprt' here", "did you mean --export?"),
        ("ipam show extra", "calicoctl ipam show: there is no argument 'extra' here", "usage: calicoctl ipam show"),
        ("-l loud get nodes", "there is no -l/--log-level 'loud': known are panic, fatal, error", ""),
    ],
)
def test_what_was_probably_meant(line, said, details):
    with pytest.raises(InvalidConfig) as raised:
        parse_arguments(line.split())
    assert said in str(raised.value) and details in raised.value.details


def test_options_may_stand_between_names():
    arguments = parse_arguments(["delete", "ippool", "a", "--force", "b", "-n", "x", "c"])
    assert (arguments.words, arguments.force, arguments.namespace) == (["ippool", "a", "b", "c"], True, "x")


class TestCompletion:
    def complete(self, line):
        """What bash offers for the last word of a command line."""
        words = line.split(" ")
        script = (
            render_completion("bash")
            + f"\nCOMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; COMP_LINE={shlex.quote(line)}\n"
            + "COMP_POINT=${#COMP_LINE}; function=$(complete -p calicoctl | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n"
            + f"$function calicoctl {shlex.quote(words[-1])} {shlex.quote(words[-2])}\n"
            + 'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    def test_bash_completes_commands_options_and_kinds(self):
        assert {"get", "ipam", "completion"} <= self.complete("calicoctl ")
        assert self.complete("calicoctl ipam s") == {"show", "split"}
        assert {"--show-blocks", "--show-borrowed"} <= self.complete("calicoctl ipam show --show")
        assert self.complete("calicoctl get ippo") == {"ippool", "ippools"}

    def test_bash_completes_files(self, tmp_path, monkeypatch):
        (tmp_path / "pool.yaml").write_text("")
        monkeypatch.chdir(tmp_path)
        assert self.complete("calicoctl apply -f po") == {"pool.yaml"}

    @pytest.mark.parametrize(
        ("line", "candidates"),
        [
            ("calicoctl ipam s", ["show", "split"]),
            ("calicoctl get ippo", ["ippool", "ippools"]),
            ("calicoctl ipam show --show-b", ["--show-blocks", "--show-borrowed"]),
            ("calicoctl completion ", ["bash", "fish", "zsh"]),
        ],
    )
    def test_fish_completes_commands_options_and_kinds(self, line, candidates, tmp_path):
        script = tmp_path / "calicoctl.fish"
        script.write_text(render_completion("fish"))
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)})
        assert done.stderr == ""
        assert sorted(offer.partition("\t")[0] for offer in done.stdout.splitlines()) == candidates

    @pytest.mark.parametrize("shell", SHELLS)
    def test_every_command_is_in_every_script(self, shell, capsys):
        assert run(["completion", shell], {}) == 0
        script = capsys.readouterr().out
        assert [word for name in LEAVES for word in name.split() if word not in script] == []

    def test_another_shell(self, capsys):
        assert run(["completion", "csh"], {}) == 1
        assert "there is no shell 'csh'" in capsys.readouterr().err
