"""The command line of ``calicoctl node``. Rule: only describes what can be given."""

from __future__ import annotations

from argparse import SUPPRESS

from cni_calico.ctl.command_line.parsers import CommandParser, Commands, output_option

BOOT_TABLE_STATES = ("off", "show")
DATASTORES = ("local", "etcd")
_NODE_RUN_OPTIONS = (
    *("name", "ip", "ip6", "ip-autodetection-method", "ip6-autodetection-method", "log-dir", "node-image"),
    *("backend", "felix-config", "docker-networking-ifprefix"),
)
_NODE_RUN_FLAGS = ("dryrun", "init-system", "no-default-ippools", "disable-docker-networking")
_NODE_RUN_FLAGS_MORE = ("use-docker-networking-container-labels",)


def add_node(commands: Commands, common: CommandParser) -> None:
    """Add the commands below ``node``."""
    commands.add("status", common, output_option())
    boot_table = commands.add("boot-table", common)
    boot_table.add_argument("state", choices=BOOT_TABLE_STATES, metavar="off|show", help="off or show")
    diags = commands.add("diags", common)
    diags.add_argument("--log-dir", default="", metavar="DIR", help="logs to take (default /var/log/calico)")
    diags.add_argument(
        "-o", "--output", dest="archive", default="", metavar="FILE", help="the archive (default in /tmp)"
    )
    check = commands.add("checksystem", common, output_option())
    check.add_argument("-f", "--kernel-config", default="", metavar="FILE", help="the kernel's configuration file")
    _add_init(commands, common)
    run = commands.add("run", common)
    run.add_argument("--as", dest="as_number", default="", help=SUPPRESS)
    for name in _NODE_RUN_OPTIONS:
        run.add_argument(f"--{name}", default="", help=SUPPRESS)
    for name in (*_NODE_RUN_FLAGS, *_NODE_RUN_FLAGS_MORE):
        run.add_argument(f"--{name}", action="store_true", help=SUPPRESS)


def _add_init(commands: Commands, common: CommandParser) -> None:
    init = commands.add("init", common)
    init.add_argument(
        "--datastore", required=True, choices=DATASTORES, metavar="local|etcd", help="one host by itself, or several"
    )
    init.add_argument("--endpoints", default="", metavar="URL,...", help="of etcd")
    for option, what in (("ca", "etcd's certificate authority"), ("cert", "certificate"), ("key", "key")):
        init.add_argument(f"--{option}", default="", metavar="FILE", help=f"{what}, by its absolute path")
    init.add_argument("--name", default="", metavar="NODE", help="this node's name (default: the host's)")
    init.add_argument(
        "--cidr", action="append", metavar="NETWORK", help="range of the default pool; also once for IPv6"
    )
    init.add_argument("--as", dest="as_number", default="", metavar="AS", help="BGP with this AS number of ours")
    init.add_argument("--peer", action="append", metavar="ADDRESS@AS", help="a BGP peer of this node; may be repeated")
    init.add_argument(
        "--force", action="store_true", help="keep aside what somebody else wrote; leave a podman out that is too old"
    )
    uninstall = commands.add("uninstall", common)
    uninstall.add_argument("--force", action="store_true", help="even if containers are attached")
    for parser in (init, uninstall):
        parser.add_argument("--dry-run", dest="show_only", action="store_true", help="only show what would be done")
