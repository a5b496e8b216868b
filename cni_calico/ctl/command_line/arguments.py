"""The command line of calicoctl.

Rule: only describes what can be given. The option names are upstream's, some with a second, more readable one. What
each command does is said in help_texts.py.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator, Sequence

from cni_calico.ctl.command_line.encryption_arguments import add_encryption
from cni_calico.ctl.command_line.flow_arguments import add_flows
from cni_calico.ctl.command_line.help_texts import PROGRAM
from cni_calico.ctl.command_line.node_arguments import add_node
from cni_calico.ctl.command_line.parsers import (
    CommandParser,
    Commands,
    common_options,
    dry_run_option,
    duration_s,
    flag,
    manifest_options,
    namespace_option,
    output_option,
    writing_options,
)
from cni_calico.ctl.command_line.policy_arguments import add_policy
from cni_calico.ctl.input.nearest import did_you_mean
from cni_calico.ctl.output.values import TABLE
from cni_calico.ctl.settings import DEFAULT_PATH
from cni_calico.directories import CNI_BIN_DIR, CNI_NET_DIR
from cni_calico.errors import InvalidConfig

SHELLS = ("bash", "zsh", "fish")
# of options that may stand before the command, and of what only some commands have
_DEFAULTS = {
    **{"config": DEFAULT_PATH, "timeout": 60.0, "context": "", "kubeconfig": "", "log_level": "panic"},
    **{"subcommand": "", "filename": "", "dry_run": "none", "watch": False},
}
_TIMEOUTS_S = {
    ("cluster", "check"): 180.0,
    ("cluster", "rehearse"): 360.0,
    ("node", "init"): 300.0,
}  # of commands that take longer
_RESOURCE = "RESOURCE"


def _add_words(parser: CommandParser, text: str) -> None:
    parser.add_argument("words", nargs="*", metavar=_RESOURCE, help=text)


def build_parser(prog: str = "calicoctl") -> CommandParser:
    common = common_options()
    parser = CommandParser(prog=prog, text=PROGRAM, program=prog, parents=[common])
    parser.add_argument(
        "-v",
        "--version",
        action="store_const",
        const="version",
        dest="show_version",
        help="show the versions of this program and of the cluster's data",
    )
    commands = Commands(parser, prog, dest="command")
    _add_resources(commands, common)
    commands.below("ipam", lambda group: _add_ipam(group, common))
    commands.below("policy", lambda group: add_policy(group, common))
    commands.below("datastore", lambda group: _add_datastore(group, common), dest="group")
    commands.below("node", lambda group: add_node(group, common))
    commands.below("cluster", lambda group: _add_cluster(group, common))
    commands.below("encryption", lambda group: add_encryption(group, common))
    commands.below("installation", lambda group: _add_installation(group, common))
    commands.below("migrate", lambda group: _add_moves(group, common))
    add_flows(commands, common)
    show = commands.add("show", common, output_option())
    show.add_argument("--html", default="", metavar="FILE", help="write the picture as one HTML page")
    completion = commands.add("completion", common)
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    version = commands.add("version", common, output_option())
    version.add_argument("--client", action="store_true", help="show only this program's version")
    version.add_argument(
        "--poll", type=duration_s, default=0.0, metavar="DURATION", help="ask again every 1s, 10m, 2h, ..."
    )
    return parser


def _add_resources(commands: Commands, common: CommandParser) -> None:
    resource = (common, namespace_option())
    get = commands.add("get", *resource, manifest_options(required=False))
    _add_words(get, "KIND, KIND NAME... or KIND/NAME...; kinds and names may be lists with commas")
    outputs = (
        "ps|wide|yaml|json|name|custom-columns=...|jsonpath=...|jsonpath-file=...|jsonpath-as-json=...|go-template=...|"
        "go-template-file=... (default ps)"
    )
    get.add_argument("-o", "--output", default="ps", metavar="FORMAT", help=outputs)
    get.add_argument("-a", "-A", "--all-namespaces", action="store_true", help="in all namespaces")
    get.add_argument("-w", "--watch", action="store_true", help="then print each change, until interrupted")
    get.add_argument("--export", action="store_true", help="leave out this cluster's metadata (uid, ...)")
    writing = (*resource, writing_options(), dry_run_option(), manifest_options(required=True))
    create = commands.add("create", *writing)
    create.add_argument("--skip-exists", action="store_true", help="leave existing resources as they are")
    for name in ("replace", "apply"):
        commands.add(name, *writing)
    for name in ("validate", "diff"):
        commands.add(name, *resource, writing_options(), manifest_options(required=True))
    delete = commands.add("delete", *resource, dry_run_option(), manifest_options(required=False))
    _add_words(delete, "KIND NAME... or KIND/NAME...; kinds and names may be lists with commas")
    delete.add_argument("-s", "--skip-not-exists", action="store_true", help="ignore resources that do not exist")
    delete.add_argument("--force", action="store_true", help="delete a pool even if workloads use its addresses")
    patch = commands.add("patch", *resource, writing_options(), dry_run_option())
    _add_words(patch, "KIND NAME or KIND/NAME")
    patch.add_argument("-p", "--patch", required=True, metavar="PATCH", help="JSON or YAML")
    patch.add_argument(
        "-t",
        "--type",
        choices=("strategic", "merge", "json"),
        default="strategic",
        metavar="TYPE",
        help="strategic, merge or json (default strategic)",
    )
    label = commands.add("label", *resource, writing_options(), dry_run_option())
    _add_words(label, "KIND NAME or KIND/NAME, then KEY=VALUE, or KEY with --remove")
    label.add_argument("--overwrite", action="store_true", help="replace the label's value if it has one")
    label.add_argument("--remove", action="store_true", help="remove the label")


def _add_ipam(commands: Commands, common: CommandParser) -> None:
    show = commands.add("show", common, output_option())
    show.add_argument("--ip", default="", metavar="ADDRESS", help="show who has this address")
    show.add_argument("--show-blocks", action="store_true", help="show the blocks, too")
    show.add_argument(
        "--show-borrowed", action="store_true", help="show addresses that a node took from another node's block"
    )
    show.add_argument("--show-configuration", action="store_true", help="show the configuration (strict affinity, ...)")
    check = commands.add("check", common, output_option("--format"))
    check.add_argument("-o", "--output", dest="report", default="", metavar="FILE", help="write a report (JSON)")
    check.add_argument("--show-all-ips", action="store_true", help="name every address that is in use")
    check.add_argument("--show-problem-ips", action="store_true", help="name every address with a problem")
    release = commands.add("release", common)
    release.add_argument("--ip", default="", metavar="ADDRESS", help="this address")
    release.add_argument(
        "--from-report",
        action="append",
        default=[],
        metavar="FILE",
        help="the leaked addresses of this report of 'ipam check'",
    )
    release.add_argument("--force", action="store_true", help="use the reports although the datastore is not locked")
    configure = commands.add("configure", common)
    configure.add_argument(
        "--strict-affinity",
        "--strictaffinity",
        type=flag,
        default=None,
        metavar="true|false",
        help="true: nodes use addresses of their own blocks only",
    )
    configure.add_argument(
        "--max-blocks-per-host",
        type=int,
        default=None,
        metavar="N",
        help="the number of blocks that a node may have; 0: any number",
    )
    configure.add_argument(
        "--kubevirt-ip-persistence",
        default=None,
        metavar="Enabled|Disabled",
        help="whether KubeVirt's virtual machines keep their addresses",
    )
    configure.add_argument("--force", action="store_true", help="set it even if addresses are borrowed")
    split = commands.add("split", common)
    split.add_argument("number", type=int, metavar="NUMBER", help="number of new pools, a power of two")
    split.add_argument("--name", default="", metavar="POOL", help="name of the pool to split")
    split.add_argument("--cidr", default="", metavar="CIDR", help="CIDR of the pool to split")


def _add_datastore(commands: Commands, common: CommandParser) -> None:
    commands.below("migrate", lambda group: _add_migrate(group, common))
    commands.add("migrate-policy-names", common).set_defaults(subcommand="migrate-policy-names")
    check = commands.add("check", common, output_option())
    check.set_defaults(subcommand="check")
    salvage = commands.add("salvage", common)
    salvage.set_defaults(subcommand="salvage")
    salvage.add_argument("-o", "--output", dest="file", required=True, metavar="NEWFILE", help="the datastore to write")
    rebuild = commands.add("rebuild", common)
    rebuild.set_defaults(
        subcommand="rebuild", recursive=False, skip_empty=False, namespace="", allow_unknown_fields=False
    )
    rebuild.add_argument("-f", "--filename", default="", metavar="FILE", help="pools and other resources: file or -")
    rebuild.add_argument(
        "--node",
        default="",
        metavar="NAME",
        help="name of this host's node (default: the name that calico-node stored)",
    )
    rebuild.add_argument("--yes", action="store_true", help="make the changes; without this option they are only shown")
    _add_etcd_roles(commands, common)


def _add_moves(commands: Commands, common: CommandParser) -> None:
    flannel = commands.add("flannel", common)
    wanted = flannel.add_mutually_exclusive_group()
    wanted.add_argument("--check", action="store_true", help="only say whether it is possible (the default)")
    wanted.add_argument("--plan", action="store_true", help="print records and commands, step by step")


def _add_etcd_roles(commands: Commands, common: CommandParser) -> None:
    roles = commands.add("etcd-roles", common)
    roles.set_defaults(subcommand="etcd-roles")
    roles.add_argument(
        "-o",
        "--output",
        choices=("sh", "json", "yaml"),
        default="sh",
        metavar="FORMAT",
        help="sh|json|yaml (default sh)",
    )
    users = {
        "plugin": ("calico-cni", "the CNI plugin"),
        "agent": ("calico-node", "calico-node"),
        "controllers": ("calico-kube-controllers", "calico-kube-controllers"),
        "calicoctl": ("calicoctl", "this program"),
    }
    for option, (name, what) in users.items():
        roles.add_argument(
            f"--{option}", default=name, metavar="USER", help=f"the user of etcd that {what} has (default {name})"
        )
    roles.add_argument(
        "--kubernetes",
        action="store_true",
        help="every network has policy.type k8s: the plugin then needs no right to write profiles",
    )
    roles.add_argument(
        "--without-controllers",
        action="store_true",
        help="calico-kube-controllers does not run: the agents clean up for the cluster",
    )
    roles.add_argument(
        "--passwords",
        default="",
        metavar="DIR",
        help="users log in with a password; each one's is in a file of its name in DIR (default: by certificate)",
    )


def _add_installation(commands: Commands, common: CommandParser) -> None:
    convert = commands.add("convert", common)
    convert.add_argument("-f", "--filename", required=True, metavar="FILE", help="the Installation: file or -")


def _add_migrate(commands: Commands, common: CommandParser) -> None:
    commands.add("lock", common)
    commands.add("unlock", common)
    export = commands.add("export", common)
    export.add_argument(
        "-o", "--output", dest="file", default="", metavar="FILE", help="file to write (default stdout)"
    )
    export.add_argument(
        "--format",
        choices=("native", "upstream"),
        default="native",
        metavar="FORMAT",
        help="native, or upstream for upstream's calicoctl (default native)",
    )
    load = commands.add("import", common)
    load.add_argument(
        "--dry-run",
        choices=("server", "none"),
        default="none",
        metavar="server",
        help="write nothing: the API server says which records it would refuse",
    )
    load.add_argument("-f", "--filename", required=True, metavar="FILE", help="file or -")


def _add_cluster(commands: Commands, common: CommandParser) -> None:
    status = commands.add("status", common, output_option())
    status.add_argument("--wait", action="store_true", help="wait until nothing is wrong, or until --timeout is over")
    check = commands.add("check", common, output_option())
    check.add_argument(
        "--nodes",
        default="",
        metavar="NODE,NODE",
        help="test between these nodes (default any two; without Kubernetes: from here to these, default all)",
    )
    check.add_argument(
        "--image",
        default="",
        metavar="IMAGE",
        help="image of the pods, which the nodes must have already (default calico-node's)",
    )
    check.add_argument(
        "--host",
        action="store_true",
        help="test between two network namespaces of this host, even if there is a cluster",
    )
    check.add_argument(
        "--network",
        default=CNI_NET_DIR,
        metavar="FILE|DIR",
        help=f"on a host: the CNI network to test (default Calico's first one in {CNI_NET_DIR})",
    )
    check.add_argument(
        "--plugins",
        default=CNI_BIN_DIR,
        metavar="DIR",
        help=f"on a host: where the CNI plugins are (default {CNI_BIN_DIR})",
    )
    check.add_argument("--as-pod", default="", metavar="TASK", help=SUPPRESS)
    rehearse = commands.add("rehearse", common, output_option())
    rehearse.add_argument(
        "--with",
        dest="bundle",
        required=True,
        metavar="DIR",
        help="the other version: a directory of its executables, or of its unpacked image",
    )
    rehearse.add_argument(
        "--environment",
        default="",
        metavar="FILE",
        help="the agent's settings, a NAME=VALUE a line (default: those of the agent that runs here)",
    )
    diags = commands.add("diags", common)
    diags.add_argument(
        "--since", type=duration_s, default=0.0, metavar="DURATION", help="take only log lines newer than 5s, 2h, ..."
    )
    diags.add_argument(
        "--max-logs", type=int, default=5, metavar="N", help="take the logs of at most N pods of each kind"
    )
    diags.add_argument(
        "--skip-temp-dir-cleanup", action="store_true", help="accepted: there is no temporary directory to keep"
    )
    diags.add_argument("--max-parallelism", type=int, default=10, metavar="N", help="number of simultaneous requests")
    diags.add_argument("--focus-nodes", default="", metavar="NODE,...", help="prefer the pods on these nodes")
    diags.add_argument("-o", "--output", dest="archive", default="", metavar="FILE", help="the archive (default in .)")


def leaves(parser: ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ArgumentParser]]:
    """(words, parser) of every command that has no subcommands."""
    if isinstance(parser, CommandParser):
        parser.complete()
    below = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    if not below:
        yield " ".join(words), parser
    for action in below:
        for name, inner in action.choices.items():
            yield from leaves(inner, (*words, name))


def parse_arguments(argv: Sequence[str], prog: str = "calicoctl") -> Namespace:
    """Raises InvalidConfig; SystemExit(0) for --help."""
    for word in argv:
        if "\0" in word or any("\ud800" <= char <= "\udfff" for char in word):
            raise InvalidConfig(f"{prog}: {word!a} is not text in UTF-8")
    parser = build_parser(prog)
    arguments: Namespace
    arguments, rest = parser.parse_known_args(argv)
    if rest:
        _parse_rest(arguments, rest, arguments.leaf if arguments.command else parser)
    timed = "timeout" in arguments
    for name, value in _DEFAULTS.items():
        if name not in arguments:
            setattr(arguments, name, value)
    if not timed:
        arguments.timeout = _TIMEOUTS_S.get((arguments.command, arguments.subcommand), arguments.timeout)
    if arguments.show_version:
        arguments.command, arguments.client, arguments.poll, arguments.output = "version", False, 0.0, TABLE
    if not arguments.command:
        raise InvalidConfig(f"{prog}: name a command", details=parser.format_usage().strip())
    return arguments


def _parse_rest(arguments: Namespace, rest: Sequence[str], leaf: ArgumentParser) -> None:
    """Parse names of resources that follow an option. Raises InvalidConfig for words that no command knows."""
    unknown = [word for word in rest if word.startswith("-") and word != "-"]
    if unknown or "words" not in arguments:
        word = (unknown or rest)[0]
        options = [text for action in leaf._actions for text in action.option_strings if action.help != SUPPRESS]
        near = did_you_mean(word.partition("=")[0], options) if unknown else ""
        what = "option" if unknown else "argument"
        raise InvalidConfig(
            f"{leaf.prog}: there is no {what} {word!r} here", details=near or leaf.format_usage().strip()
        )
    arguments.words = [*arguments.words, *rest]
