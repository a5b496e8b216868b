"""The command line of ``calicoctl encryption``. Rule: only describes what can be given."""

from __future__ import annotations

from cni_calico.ctl.command_line.parsers import CommandParser, Commands, output_option

STRICT_STATES = ("on", "off")


def add_encryption(commands: Commands, common: CommandParser) -> None:
    """Add the commands below ``encryption``."""
    status = commands.add("status", common, output_option())
    status.add_argument("node", nargs="?", default="", metavar="NODE", help="only this node")
    rotate = commands.add("rotate", common)
    rotate.add_argument("node", nargs="?", default="", metavar="NODE", help="the node that gets a new key")
    rotate.add_argument("--all", action="store_true", help="all nodes, one after the other")
    strict = commands.add("strict", common)
    strict.add_argument("state", choices=STRICT_STATES, metavar="on|off", help="on or off")
    strict.add_argument("--force", action="store_true", help="even if nodes without a key are cut off")
