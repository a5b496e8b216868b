"""Texts of others never control a terminal, and those of people stay as they are."""

from cni_calico.ctl.output.escaping import shown, shown_lines


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert shown("a\x1b[31m\x9b2J\u202e\n\tb") == "a\\x1b[31m\\x9b2J\\x202e\\x0a\\x09b"
    assert shown("caf\u00e9 \u65e5\u672c") == "caf\u00e9 \u65e5\u672c" and shown("") == "" and shown(5) == "5"


def test_lines_and_columns_stay() -> None:
    assert shown_lines("a\tb\x1bc\n\nd\r\n") == "a\tb\\x1bc\n\nd\\x0d\n"
