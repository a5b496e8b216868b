"""Entry point of ``calicoctl``: the only module here that prints and decides the exit status."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

from cni_calico.errors import CalicoError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from cni_calico.ctl.output.looks import PlainLook
    from cni_calico.ctl.session import Session

    Command = Callable[[Session, Namespace], str]
    HostCommand = Callable[[Namespace, Mapping[str, str]], str]

KUBECTL_PLUGIN = "kubectl-calico"
INTERRUPTED = 130  # a shell's exit status for SIGINT
_WRITING = ("create", "replace", "apply", "delete", "patch", "label")
_BRIEF = ("get", "ipam show", "policy show")  # typed often, and they read a few records
_CREATING = (*_WRITING, "ipam configure", "datastore import")


def _find(name: str, *, watching: bool) -> Command:
    """A command that works on a datastore; only its own module is imported."""
    group, _, verb = name.partition(" ")
    if group == "ipam" and verb in ("show", "configure"):
        from cni_calico.ctl.ipam import show as ipam_show

        return {"show": ipam_show.show, "configure": ipam_show.configure}[verb]
    if name == "ipam check":
        from cni_calico.ctl.ipam import check as ipam_check

        return ipam_check.check
    if name == "ipam release":
        from cni_calico.ctl.ipam import release as ipam_release

        return ipam_release.release
    if name == "ipam split":
        from cni_calico.ctl.ipam import split as ipam_split

        return ipam_split.split
    if name == "policy explain":
        from cni_calico.ctl.policy import explain

        return explain.explain
    if name == "policy show":
        from cni_calico.ctl.policy import show

        return show.show
    if name == "datastore import":
        from cni_calico.ctl.datastore import restore

        return restore.load
    if name == "datastore migrate-policy-names":
        from cni_calico.ctl.datastore import policy_names

        return policy_names.migrate
    if name == "show":
        from cni_calico.ctl.picture import show as picture

        return picture.show
    if name == "cluster status":
        from cni_calico.ctl.cluster import status

        return status.show
    if name == "diff":
        from cni_calico.ctl.resources import rehearsal

        return rehearsal.diff
    if name == "get" and watching:
        from cni_calico.ctl.resources import following

        return following.watch
    if group == "datastore":
        from cni_calico.ctl.datastore import migrate

        return {"lock": migrate.lock, "unlock": migrate.unlock, "export": migrate.export}[verb]
    from cni_calico.ctl.resources import commands

    return {
        "get": commands.get,
        "create": commands.create,
        "replace": commands.replace,
        "apply": commands.apply,
        "delete": commands.delete,
        "patch": commands.patch,
        "label": commands.label,
    }[name]


def _standalone(name: str, dry_run: str) -> HostCommand | None:
    """A command that opens no datastore, or opens it itself."""
    if name == "version":
        from cni_calico.ctl import version

        return version.show
    if name == "completion":
        from cni_calico.ctl.command_line import completion

        return completion.show
    if name == "validate":
        from cni_calico.ctl.resources import commands

        return commands.validate
    if name in _WRITING and dry_run == "client":
        from cni_calico.ctl.resources import rehearsal

        return rehearsal.check
    if name.startswith("node "):
        from cni_calico.ctl.node import checksystem, diags, status
        from cni_calico.ctl.node import run as node_run

        return {
            "node status": status.show,
            "node diags": diags.collect,
            "node checksystem": checksystem.check,
            "node run": node_run.explain,
        }[name]
    if name in ("datastore check", "datastore salvage", "datastore rebuild"):
        from cni_calico.ctl.datastore import local

        return {
            "datastore check": local.check,
            "datastore salvage": local.rescue,
            "datastore rebuild": local.rebuild,
        }[name]
    if name == "datastore etcd-roles":
        from cni_calico.ctl.datastore import etcd_roles

        return etcd_roles.show
    if name == "cluster check":
        from cni_calico.ctl.cluster import check

        return check.check
    if name == "cluster diags":
        from cni_calico.ctl.cluster import diags as cluster_diags

        return cluster_diags.collect
    return None


def _read_stdin(is_export: bool) -> str:
    from cni_calico.bounded import EXPORT_BYTES, MANIFEST_BYTES, require_size

    limit = EXPORT_BYTES if is_export else MANIFEST_BYTES
    try:
        text = sys.stdin.read(limit + 1)
    except UnicodeDecodeError as e:
        from cni_calico.errors import InvalidConfig

        raise InvalidConfig(f"cannot read standard input: {e}") from e
    require_size(text, "standard input", limit=limit)
    return text


def _print(text: str, file: TextIO) -> None:
    """Print a text; characters that the terminal's encoding lacks are escaped."""
    encoding = file.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end="", file=file, flush=True)


def _say(text: str) -> None:
    _print(text, sys.stdout)


def _note(text: object) -> None:
    _print(f"{text}\n", sys.stderr)


def _warn(problem: object) -> None:
    _note(f"Warning: {problem}")


def _end_now() -> None:
    """End an interrupted command without waiting for its threads."""
    try:
        sys.stdout.flush()
    except OSError:
        pass
    os._exit(INTERRUPTED)


def _look(environ: Mapping[str, str]) -> PlainLook:
    if sys.stdout.isatty():
        from cni_calico.ctl.output.terminal import look_of

        return look_of(sys.stdout, environ)
    from cni_calico.ctl.output.looks import PLAIN

    return PLAIN


def _complain(error: CalicoError, status: int) -> int:
    """Report what went wrong; returns the exit status: ``status``, except for a command that could be carried out."""
    from cni_calico.ctl.session import CommandFailed

    if isinstance(error, CommandFailed):
        _say(error.output)
        status = 1
    if error.message:
        _note(error.message)
    if error.details:
        _note(f"({error.details})")
    return status


def run(argv: Sequence[str], environ: Mapping[str, str], prog: str = "calicoctl") -> int:
    """Run a command line and return its exit status."""
    from cni_calico.ctl.command_line.arguments import parse_arguments

    failing = 1
    try:
        arguments = parse_arguments(argv, prog)
        # for diff 1 means that something would change, as for kubectl's
        failing = 2 if arguments.command == "diff" else 1
        words = (arguments.command, arguments.subcommand)
        arguments.stdin = _read_stdin(words[1] == "import") if arguments.filename == "-" else ""
        arguments.prog, arguments.warn, arguments.note, arguments.say = prog, _warn, _note, _say
        arguments.end_now = _end_now
        arguments.look = _look(environ)
        _say(_run_command(" ".join(filter(None, words)), arguments, environ))
        return 0
    except CalicoError as e:
        return _complain(e, failing)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone: write nothing more, not even at exit
        return 1


def _run_command(name: str, arguments: Namespace, environ: Mapping[str, str]) -> str:
    dry_run = arguments.dry_run
    standalone = _standalone(name, dry_run)
    if standalone is not None:
        return standalone(arguments, environ)
    from cni_calico.ctl.opening import open_session

    command = _find(name, watching=arguments.watch)
    brief = name in _BRIEF and not arguments.watch
    creating = name in _CREATING and dry_run == "none"
    with open_session(arguments, environ, creating=creating, brief=brief) as session:
        if dry_run == "server":
            from cni_calico.ctl.resources.rehearsal import rehearse

            session = rehearse(session)
        if name in _WRITING:
            from cni_calico.ctl.datastore.initialize import initialize

            initialize(session)
        return command(session, arguments) + ("" if dry_run == "none" else "Nothing was changed: --dry-run=server.\n")


def main() -> int:
    from cni_calico import faults

    faults.install_from_environment(os.environ)
    is_plugin = os.path.basename(sys.argv[0]) == KUBECTL_PLUGIN
    return run(sys.argv[1:], os.environ, "kubectl calico" if is_plugin else "calicoctl")


if __name__ == "__main__":
    sys.exit(main())
