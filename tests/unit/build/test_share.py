"""calicoctl's manual page and completions, as the build makes them."""

import subprocess
from pathlib import Path

import pytest
from share import COMPLETIONS, write_share

from cni_calico.ctl.command_line.arguments import build_parser, leaves
from cni_calico.ctl.command_line.help_texts import COMMANDS


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("share")
    write_share(directory)
    return directory


def test_the_manual_page_reads_well(share: Path) -> None:
    """groff has no complaint, and the page as it is shown has every command, option and example."""
    command = ["groff", "-man", "-ww", "-Tascii", "-P-c", "-rLL=200n", str(share / "man/man1/calicoctl.1")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    shown = subprocess.run(["col", "-bx"], input=done.stdout, capture_output=True, text=True, check=True).stdout
    for name, parser in leaves(build_parser()):
        assert f"   calicoctl {name}\n" in shown
        for line, _ in COMMANDS[name].examples:
            assert f"calicoctl {line}\n" in shown
        for action in parser._actions:
            assert all(option in shown for option in action.option_strings if action.help != "==SUPPRESS==")


def test_shells_take_their_completions(share: Path) -> None:
    subprocess.run(["bash", "-n", share / COMPLETIONS["bash"]], check=True)
    subprocess.run(["zsh", "-n", share / COMPLETIONS["zsh"]], check=True)
    subprocess.run(["fish", "--no-execute", share / COMPLETIONS["fish"]], check=True)
    assert all((share / name).stat().st_size > 1000 for name in COMPLETIONS.values())
    assert (share / COMPLETIONS["zsh"]).read_text().startswith("#compdef calicoctl\n")
    assert "complete -c calicoctl" in (share / COMPLETIONS["fish"]).read_text()


def test_the_same_bytes_twice(share: Path, tmp_path: Path) -> None:
    write_share(tmp_path)
    for name in ("man/man1/calicoctl.1", *COMPLETIONS.values()):
        assert (tmp_path / name).read_bytes() == (share / name).read_bytes()
