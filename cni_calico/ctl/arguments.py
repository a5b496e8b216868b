"""PURE: the command line of calicoctl.

Rule: only describes what can be given. The option names are upstream's, some with a second, more readable one.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from typing import NoReturn

from cni_calico.ctl.settings import DEFAULT_PATH
from cni_calico.errors import InvalidConfig

_DEFAULTS = {"config": DEFAULT_PATH, "timeout": 60.0, "context": "", "kubeconfig": ""}
_NODE_RUN_OPTIONS = (
    *("name", "as", "ip", "ip6", "ip-autodetection-method", "ip6-autodetection-method", "log-dir", "node-image"),
    *("backend", "felix-config", "docker-networking-ifprefix"),
)
_NODE_RUN_FLAGS = ("dryrun", "init-system", "no-default-ippools", "disable-docker-networking")
_NODE_RUN_FLAGS_MORE = ("use-docker-networking-container-labels",)


class _ArgumentParser(ArgumentParser):
    """Raises its errors, so that main decides how the program ends."""

    def error(self, message: str) -> NoReturn:
        raise InvalidConfig(f"{self.prog}: {message}", details=self.format_usage().strip())


def _flag(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ArgumentTypeError(f"expected true or false, got {text!r}")


def _duration_s(text: str) -> float:
    from cni_calico.daemon.settings_table import parse_duration_s

    try:
        return parse_duration_s(text)
    except ValueError as e:
        raise ArgumentTypeError(f"expected a duration such as 1s, 10m or 2h, got {text!r}") from e


def _common() -> _ArgumentParser:
    common = _ArgumentParser(add_help=False)
    common.add_argument("-c", "--config", default=SUPPRESS, metavar="FILE", help=f"default {DEFAULT_PATH}")
    common.add_argument("--kubeconfig", default=SUPPRESS, metavar="FILE", help="use this cluster's datastore")
    common.add_argument("--context", default=SUPPRESS, metavar="CONTEXT", help="the kubeconfig's context to use")
    common.add_argument("--timeout", type=float, default=SUPPRESS, metavar="SECONDS", help="default 60")
    common.add_argument("-l", "--log-level", default=SUPPRESS, metavar="LEVEL", help="accepted, has no effect")
    common.add_argument("--allow-version-mismatch", action="store_true", default=SUPPRESS, help=SUPPRESS)
    return common


def _namespaced() -> _ArgumentParser:
    options = _ArgumentParser(add_help=False)
    options.add_argument("-n", "--namespace", default="", metavar="NS")
    return options


def _writing() -> _ArgumentParser:
    options = _ArgumentParser(add_help=False)
    options.add_argument(
        "--allow-unknown-fields", action="store_true", help="store fields that this version does not know"
    )
    return options


def _manifest(*, required: bool) -> _ArgumentParser:
    options = _ArgumentParser(add_help=False)
    options.add_argument("-f", "--filename", required=required, default="", metavar="FILE", help="file, directory or -")
    options.add_argument("-R", "--recursive", action="store_true", help="also the directories below a directory")
    options.add_argument("-e", "--skip-empty", action="store_true", help="do not fail when there are no resources")
    return options


def build_parser(prog: str = "calicoctl") -> _ArgumentParser:
    common = _common()
    parser = _ArgumentParser(prog=prog, description="Manage Calico's resources and addresses.", parents=[common])
    parser.add_argument("-v", "--version", action="store_const", const="version", dest="show_version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_ArgumentParser)
    resource = [common, _namespaced()]
    get = commands.add_parser("get", parents=[*resource, _manifest(required=False)], help="show resources")
    get.add_argument("kind", nargs="?", metavar="KIND")
    get.add_argument("names", nargs="*", metavar="NAME")
    outputs = "ps|wide|yaml|json|name|custom-columns=...|go-template=...|go-template-file=..."
    get.add_argument("-o", "--output", default="ps", metavar="FORMAT", help=outputs)
    get.add_argument("-a", "-A", "--all-namespaces", action="store_true")
    get.add_argument("--export", action="store_true", help="without metadata of this cluster (uid, ...)")
    writing = [*resource, _writing(), _manifest(required=True)]
    create = commands.add_parser("create", parents=writing, help="create resources")
    create.add_argument("--skip-exists", action="store_true", help="leave resources that exist as they are")
    for name, what in (("replace", "replace resources"), ("apply", "create or replace resources")):
        commands.add_parser(name, parents=writing, help=what)
    commands.add_parser("validate", parents=writing, help="check resources, without a datastore")
    delete = commands.add_parser("delete", parents=[*resource, _manifest(required=False)], help="delete resources")
    delete.add_argument("kind", nargs="?", metavar="KIND")
    delete.add_argument("names", nargs="*", metavar="NAME")
    delete.add_argument(
        "-s", "--skip-not-exists", action="store_true", help="do not fail for resources that do not exist"
    )
    delete.add_argument("--force", action="store_true", help="delete a pool even if workloads use its addresses")
    patch = commands.add_parser("patch", parents=[*resource, _writing()], help="change parts of a resource")
    patch.add_argument("kind", metavar="KIND")
    patch.add_argument("name", metavar="NAME")
    patch.add_argument("-p", "--patch", required=True, metavar="PATCH", help="JSON or YAML")
    patch.add_argument("-t", "--type", choices=("strategic", "merge", "json"), default="strategic")
    label = commands.add_parser("label", parents=[*resource, _writing()], help="set or remove a label")
    label.add_argument("kind", metavar="KIND")
    label.add_argument("name", metavar="NAME")
    label.add_argument("label", metavar="KEY=VALUE | KEY --remove")
    label.add_argument("--overwrite", action="store_true")
    label.add_argument("--remove", action="store_true")
    _add_ipam(commands.add_parser("ipam", help="look at and repair addresses"), common)
    _add_policy(commands.add_parser("policy", help="what policies do to connections"), common)
    _add_datastore(commands.add_parser("datastore", help="lock, export, import"), common)
    _add_node(commands.add_parser("node", help="look at this host"), common)
    _add_cluster(commands.add_parser("cluster", help="look at the whole cluster"), common)
    version = commands.add_parser("version", parents=[common], help="versions of this program and the cluster's data")
    version.add_argument("--client", action="store_true", help="of this program only")
    version.add_argument(
        "--poll", type=_duration_s, default=0.0, metavar="DURATION", help="look again every 1s, 10m, 2h, ..."
    )
    return parser


def _add_ipam(parser: _ArgumentParser, common: _ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True, parser_class=_ArgumentParser)
    show = commands.add_parser("show", parents=[common], help="how full pools and blocks are")
    show.add_argument("--ip", default="", metavar="ADDRESS", help="who has this address")
    show.add_argument("--show-blocks", action="store_true")
    show.add_argument("--show-borrowed", action="store_true")
    show.add_argument("--show-configuration", action="store_true")
    check = commands.add_parser("check", parents=[common], help="find inconsistencies; exits with 1 if there are any")
    check.add_argument("-o", "--output", dest="report", default="", metavar="FILE", help="write a report")
    check.add_argument("--show-all-ips", action="store_true")
    check.add_argument("--show-problem-ips", action="store_true")
    release = commands.add_parser("release", parents=[common], help="release addresses that nobody uses")
    release.add_argument("--ip", default="", metavar="ADDRESS")
    release.add_argument("--from-report", action="append", default=[], metavar="FILE")
    release.add_argument("--force", action="store_true")
    configure = commands.add_parser("configure", parents=[common], help="change the configuration")
    configure.add_argument("--strict-affinity", "--strictaffinity", type=_flag, default=None, metavar="true|false")
    configure.add_argument("--max-blocks-per-host", type=int, default=None, metavar="N")
    configure.add_argument("--kubevirt-ip-persistence", default=None, metavar="Enabled|Disabled")
    configure.add_argument("--force", action="store_true", help="even if addresses are borrowed")
    split = commands.add_parser(
        "split", parents=[common], help="split a pool into several (the datastore must be locked)"
    )
    split.add_argument("number", type=int, metavar="NUMBER", help="number of new pools, a power of two")
    split.add_argument("--name", default="", metavar="POOL")
    split.add_argument("--cidr", default="", metavar="CIDR", help="of the pool to split")


def _add_policy(parser: _ArgumentParser, common: _ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True, parser_class=_ArgumentParser)
    overlay = _ArgumentParser(add_help=False)
    overlay.add_argument(
        "--with", dest="overlay", action="append", default=[], metavar="FILE", help="as if this were applied"
    )
    parents = [common, _namespaced(), overlay]
    explain = commands.add_parser("explain", parents=parents, help="what becomes of a connection, and why")
    for name, to in (("source", "from"), ("destination", "to")):
        explain.add_argument(f"--{to}", dest=name, required=True, metavar="POD|NS/POD|ADDRESS")
    explain.add_argument("--protocol", default="tcp", metavar="NAME|NUMBER", help="default tcp")
    explain.add_argument("--port", type=int, default=None, metavar="PORT", help="of the destination")
    explain.add_argument("--source-port", type=int, default=0, metavar="PORT", help="default 49152")
    show = commands.add_parser("show", parents=parents, help="the policies of a workload, in their order")
    show.add_argument("endpoint", nargs="?", default="", metavar="POD|NS/POD|ADDRESS")
    show.add_argument("--all", action="store_true", help="of every workload")
    show.add_argument("--node", default="", metavar="NODE", help="with --all: of this node's workloads")


def _add_datastore(parser: _ArgumentParser, common: _ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="group", metavar="COMMAND", required=True, parser_class=_ArgumentParser)
    migrate = commands.add_parser("migrate", help="move all data to another datastore")
    steps = migrate.add_subparsers(dest="subcommand", metavar="COMMAND", required=True, parser_class=_ArgumentParser)
    steps.add_parser("lock", parents=[common], help="stop ADD and DEL while data is moved")
    steps.add_parser("unlock", parents=[common], help="let ADD and DEL go on")
    export = steps.add_parser("export", parents=[common], help="print all data")
    export.add_argument("-o", "--output", dest="file", default="", metavar="FILE")
    export.add_argument("--format", choices=("native", "upstream"), default="native", help="default native")
    load = steps.add_parser("import", parents=[common], help="write exported data into an empty datastore")
    load.add_argument("-f", "--filename", required=True, metavar="FILE", help="file or -")
    check = commands.add_parser("check", parents=[common], help="whether the embedded datastore's file is in order")
    check.set_defaults(subcommand="check")
    salvage = commands.add_parser("salvage", parents=[common], help="what can be read of a damaged one, in a new one")
    salvage.set_defaults(subcommand="salvage")
    salvage.add_argument("-o", "--output", dest="file", required=True, metavar="NEWFILE")
    rebuild = commands.add_parser(
        "rebuild", parents=[common], help="a new one for a lost one: addresses of running containers are taken in it"
    )
    rebuild.set_defaults(
        subcommand="rebuild", recursive=False, skip_empty=False, namespace="", allow_unknown_fields=False
    )
    rebuild.add_argument("-f", "--filename", default="", metavar="FILE", help="pools and other resources: file or -")
    rebuild.add_argument("--node", default="", metavar="NAME", help="default: as calico-node wrote it")
    rebuild.add_argument("--yes", action="store_true", help="do it; without, only say what would be done")


def _add_node(parser: _ArgumentParser, common: _ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True, parser_class=_ArgumentParser)
    commands.add_parser("status", parents=[common], help="state of calico-node and its BGP sessions")
    diags = commands.add_parser("diags", parents=[common], help="one archive of logs, routes and configuration")
    diags.add_argument("--log-dir", default="", metavar="DIR", help="default /var/log/calico")
    diags.add_argument("-o", "--output", dest="archive", default="", metavar="FILE", help="default in /tmp")
    check = commands.add_parser("checksystem", parents=[common], help="whether this host can be a node")
    check.add_argument(
        "-f", "--kernel-config", default="", metavar="FILE", help="the kernel's configuration to look at"
    )
    run = commands.add_parser("run", parents=[common], help="how to run calico-node on this host")
    for name in _NODE_RUN_OPTIONS:
        run.add_argument(f"--{name}", default="", help=SUPPRESS)
    for name in (*_NODE_RUN_FLAGS, *_NODE_RUN_FLAGS_MORE):
        run.add_argument(f"--{name}", action="store_true", help=SUPPRESS)


def _add_cluster(parser: _ArgumentParser, common: _ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True, parser_class=_ArgumentParser)
    diags = commands.add_parser("diags", parents=[common], help="one archive of the cluster's resources and logs")
    diags.add_argument("--since", type=_duration_s, default=0.0, metavar="DURATION", help="logs no older than 5s, 2h")
    diags.add_argument("--max-logs", type=int, default=5, metavar="N", help="pods of a kind whose logs are taken")
    diags.add_argument("--max-parallelism", type=int, default=10, metavar="N", help="requests at once")
    diags.add_argument("--focus-nodes", default="", metavar="NODE,...", help="nodes whose pods are taken first")
    diags.add_argument("-o", "--output", dest="archive", default="", metavar="FILE", help="default in .")


def parse_arguments(argv: Sequence[str], prog: str = "calicoctl") -> Namespace:
    """Raises InvalidConfig; SystemExit(0) for --help."""
    for word in argv:
        if "\0" in word or any("\ud800" <= char <= "\udfff" for char in word):
            raise InvalidConfig(f"{prog}: {word!a} is not text in UTF-8")
    arguments = build_parser(prog).parse_args(argv)
    for name, value in _DEFAULTS.items():
        if name not in arguments:
            setattr(arguments, name, value)
    if arguments.show_version:
        arguments.command, arguments.client, arguments.poll = "version", False, 0.0
    if not arguments.command:
        raise InvalidConfig(f"{prog}: name a command", details=build_parser(prog).format_usage().strip())
    return arguments
