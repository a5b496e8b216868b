"""The command line of ``calicoctl policy``."""

from __future__ import annotations

from cni_calico.ctl.command_line.parsers import CommandParser, Commands, duration_s, namespace_option, output_option

_DAY = " (default 24h)"


def add_policy(commands: Commands, common: CommandParser) -> None:
    overlay = CommandParser(add_help=False)
    overlay.add_argument(
        "--with",
        dest="overlay",
        action="append",
        default=[],
        metavar="FILE",
        help="answer as if this file were applied",
    )
    parents = (common, namespace_option(), overlay, output_option())
    explain = commands.add("explain", *parents)
    ends = (("source", "from", "source of the connection"), ("destination", "to", "destination of the connection"))
    for name, to, what in ends:
        explain.add_argument(
            f"--{to}",
            dest=name,
            required=True,
            metavar="POD|NS/POD|ADDRESS" + ("|HOST:PORT" if to == "to" else ""),
            help=what,
        )
    explain.add_argument(
        "--protocol", default="tcp", metavar="NAME|NUMBER", help="the connection's protocol (default tcp)"
    )
    explain.add_argument("--port", type=int, default=None, metavar="PORT", help="port of the destination")
    explain.add_argument(
        "--source-port", type=int, default=0, metavar="PORT", help="port of the source (default 49152)"
    )
    show = commands.add("show", *parents)
    show.add_argument("endpoint", nargs="?", default="", metavar="POD|NS/POD|ADDRESS", help="the workload")
    show.add_argument("--all", action="store_true", help="show every workload")
    show.add_argument("--node", default="", metavar="NODE", help="with --all: only this node's workloads")
    rights = commands.add("rights", common, output_option())
    rights.add_argument("user", metavar="USER", help="a user of Kubernetes, or system:serviceaccount:NAMESPACE:NAME")
    rights.add_argument(
        "--group", dest="groups", action="append", default=[], metavar="GROUP", help="a group that the user is in"
    )
    _add_diff(commands, common)
    _add_replay(commands, common)
    _add_recommend(commands, common)
    _add_test(commands, common)


def _add_diff(commands: Commands, common: CommandParser) -> None:
    diff = commands.add("diff", common, namespace_option(), _changes(), _recorded(), output_option())
    diff.set_defaults(without=[])


def _add_replay(commands: Commands, common: CommandParser) -> None:
    replay = commands.add("replay", common, namespace_option(), _changes(), _recorded(_DAY), output_option())
    replay.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="KIND/[NS/]NAME",
        help="as if this policy were deleted",
    )
    replay.add_argument("--any", action="store_true", help="also what would be allowed that was denied")


def _add_recommend(commands: Commands, common: CommandParser) -> None:
    recommend = commands.add("recommend", common, namespace_option(), _recorded(_DAY), output_option())
    recommend.set_defaults(overlay=[], without=[], prune=False)
    recommend.add_argument(
        "--kind",
        default="NetworkPolicy",
        choices=("NetworkPolicy", "StagedNetworkPolicy"),
        help="of what is written (default NetworkPolicy)",
    )
    recommend.add_argument(
        "--expectations", default="", metavar="FILE", help="write there what was learnt, for 'calicoctl policy test'"
    )
    recommend.add_argument("--include-denied", action="store_true", help="also allow what was denied")
    recommend.add_argument(
        "--dir", dest="directory", default="", metavar="DIR", help="the policies that there are; no datastore is used"
    )
    recommend.add_argument("--endpoints", action="append", default=[], metavar="FILE|DIR", help="with --dir: workloads")


def _recorded(usual: str = "") -> CommandParser:
    """Flows, and where they come from."""
    flows = CommandParser(add_help=False)
    flows.add_argument(
        "--flows",
        action="append",
        default=[],
        metavar="FILE",
        help="flows of a node, as 'calicoctl flows --aggregate -o jsonl' writes them (default: ask the recorders)",
    )
    flows.add_argument(
        "--since",
        type=duration_s,
        default=None,
        metavar="DURATION",
        help=f"how far back the recorders look{usual}; not with --flows, of which all count",
    )
    flows.add_argument("--host", action="store_true", help="only this host's flows, even if there is a cluster")
    flows.add_argument(
        "--node",
        dest="nodes",
        action="append",
        default=[],
        metavar="NODE",
        help="only this node's flows (also several)",
    )
    return flows


def _add_test(commands: Commands, common: CommandParser) -> None:
    test = commands.add("test", common, namespace_option(), output_option())
    test.set_defaults(directory="", prune=False, without=[])
    test.add_argument("files", nargs="+", metavar="FILE", help="expectations: files, or directories of them")
    _add_overlay(test)
    test.add_argument("--alone", action="store_true", help="only the policies of --with; no datastore is used")
    test.add_argument(
        "--endpoints", action="append", default=[], metavar="FILE|DIR", help="with --alone: the workloads"
    )


def _changes() -> CommandParser:
    """A change of policy, and what it is compared with."""
    changes = CommandParser(add_help=False)
    _add_overlay(changes)
    changes.add_argument(
        "--dir",
        dest="directory",
        default="",
        metavar="DIR",
        help="compare with the policies of this directory, which --with replaces as a whole; no datastore is used",
    )
    changes.add_argument(
        "--endpoints",
        action="append",
        default=[],
        metavar="FILE|DIR",
        help="with --dir: the workloads, as 'calicoctl get workloadendpoint -A -o yaml' writes them",
    )
    changes.add_argument("--html", default="", metavar="FILE", help="write a page for a reviewer")
    changes.add_argument("--prune", action="store_true", help="as if policies that the files do not have were deleted")
    return changes


def _add_overlay(parser: CommandParser) -> None:
    parser.add_argument(
        "--with",
        dest="overlay",
        action="append",
        default=[],
        metavar="FILE|DIR",
        help="policies as if they were applied; of a directory all files below it",
    )
