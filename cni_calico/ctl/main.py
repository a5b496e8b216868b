"""Entry point of ``calicoctl``: the only module here that prints and decides the exit status."""

from __future__ import annotations

import gc
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from errno import EBADF
from importlib import import_module
from itertools import pairwise
from typing import Any, TextIO

from cni_calico.ctl.output.looks import PlainLook
from cni_calico.ctl.session import Session
from cni_calico.errors import CalicoError

Command = Callable[[Session, Namespace], str]
StandaloneCommand = Callable[[Namespace, Mapping[str, str]], str]

KUBECTL_PLUGIN = "kubectl-calico"
INTERRUPTED = 130  # a shell's exit status for SIGINT
_SELDOM = 200_000  # new objects between two garbage collections: what a command reads stays until it ends
_AT_ONCE = 1 << 20  # characters that are encoded at once
_WRITING = ("create", "replace", "apply", "delete", "patch", "label")
# commands for which 1 means that something would change, as for kubectl diff
_FINDING = (
    *(("diff", ""), ("cluster", "rehearse"), ("policy", "diff"), ("policy", "recommend")),
    *(("policy", "replay"), ("policy", "test")),
)
_CREATING = (*_WRITING, "ipam configure", "datastore import")


# where commands are: module below cni_calico.ctl, and function; only the module of the one that runs is imported
_ON_DATASTORES = {
    "cluster status": "cluster.status:show",
    "datastore export": "datastore.migrate:export",
    "datastore import": "datastore.restore:load",
    "datastore lock": "datastore.migrate:lock",
    "datastore migrate-policy-names": "datastore.policy_names:migrate",
    "datastore unlock": "datastore.migrate:unlock",
    "diff": "resources.rehearsal:diff",
    "encryption rotate": "encryption.rotate:rotate",
    "encryption status": "encryption.status:show",
    "encryption strict": "encryption.strict:strict",
    "ipam check": "ipam.check:check",
    "ipam configure": "ipam.show:configure",
    "ipam release": "ipam.release:release",
    "ipam show": "ipam.show:show",
    "ipam split": "ipam.split:split",
    "migrate flannel": "migrate.flannel:flannel",
    "policy explain": "policy.explain:explain",
    "policy rights": "policy.rights:rights",
    "policy show": "policy.show:show",
    "show": "picture.show:show",
    **{verb: f"resources.commands:{verb}" for verb in ("get", *_WRITING)},
}
# those that open no datastore, or open it themselves
_STANDALONE = {
    "cluster check": "cluster.check:check",
    "cluster diags": "cluster.diags:collect",
    "cluster rehearse": "cluster.rehearse:rehearse",
    "completion": "command_line.completion:show",
    "datastore check": "datastore.local:check",
    "flows": "flows.command:flows",
    "datastore etcd-roles": "datastore.etcd_roles:show",
    "datastore rebuild": "datastore.local:rebuild",
    "datastore salvage": "datastore.local:rescue",
    "installation convert": "convert.installation:convert",
    "node boot-table": "node.boot_table:run",
    "node checksystem": "node.checksystem:check",
    "node diags": "node.diags:collect",
    "node init": "node.init:init",
    "node run": "node.run:explain",
    "node status": "node.status:show",
    "node uninstall": "node.uninstall:uninstall",
    "policy diff": "flows.diff:diff",
    "policy recommend": "flows.recommend:recommend",
    "policy replay": "flows.replay:replay",
    "policy test": "policy.test:test",
    "validate": "resources.commands:validate",
    "version": "version:show",
}


class OutputFailed(Exception):
    """What was found out cannot be told. Not a CalicoError: it may happen while one is told."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _load(place: str) -> Any:
    module, _, function = place.partition(":")
    return getattr(import_module(f"cni_calico.ctl.{module}"), function)


def find_command(name: str, *, watching: bool = False) -> Command:
    """A command that works on a datastore."""
    watches = name == "get" and watching
    command: Command = _load("resources.following:watch" if watches else _ON_DATASTORES[name])
    return command


def find_standalone(name: str, *, dry_run: str = "none") -> StandaloneCommand | None:
    """A command that opens no datastore, or opens it itself; None for others."""
    rehearsed = name in _WRITING and dry_run == "client"
    place = "resources.rehearsal:check" if rehearsed else _STANDALONE.get(name)
    command: StandaloneCommand | None = _load(place) if place else None
    return command


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


def _print(text: str, file: TextIO | None) -> None:
    """Print a text, unless ``file`` was closed before we began; characters that the terminal's encoding lacks are
    escaped. A long one in parts: two copies of a table of 100,000 lines take more than the table.
    """
    if file is None:
        return
    encoding = file.encoding or "utf-8"
    for at in range(0, len(text), _AT_ONCE):
        part = text[at : at + _AT_ONCE]
        print(part.encode(encoding, "backslashreplace").decode(encoding), end="", file=file)
    file.flush()


def _say(text: str) -> None:
    """Raises OutputFailed, BrokenPipeError."""
    if not text:
        return
    try:
        if _standard(sys.stdout) is None:
            raise OSError(EBADF, os.strerror(EBADF))
        _print(text, sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as e:
        with suppress(OSError, AttributeError):
            sys.stdout.close()  # what is left would be tried again at exit
        raise OutputFailed(f"cannot write the answer to standard output: {e.strerror}") from e


def _standard(file: TextIO | None) -> TextIO | None:
    """None if it was closed before we began."""
    return file


def _note(text: object) -> None:
    from cni_calico.ctl.output.escaping import shown_lines

    _print(f"{shown_lines(str(text))}\n", sys.stderr)


def _warn(problem: object) -> None:
    _note(f"Warning: {problem}")


def _show_progress(text: str) -> None:
    """On a terminal, in a line that the next one replaces; "" leaves nothing behind."""
    if sys.stderr.isatty():
        _print(f"\r\x1b[K{text}", sys.stderr)


def _end_now() -> None:
    """End an interrupted command without waiting for its threads."""
    try:
        sys.stdout.flush()
    except OSError:
        pass
    os._exit(INTERRUPTED)


def _look(environ: Mapping[str, str]) -> PlainLook:
    if (output := _standard(sys.stdout)) is not None and output.isatty():
        from cni_calico.ctl.output.terminal import look_of

        return look_of(sys.stdout, environ)
    from cni_calico.ctl.output.looks import PLAIN

    return PLAIN


def _complain(error: CalicoError, status: int) -> int:
    """Report what went wrong; returns the exit status: ``status``, except for a command that could be carried out."""
    from cni_calico.ctl.session import CommandFailed

    if isinstance(error, CommandFailed):
        _say(error.output)
        status = error.status
    if error.message:
        _note(error.message)
    if error.details:
        _note(f"({error.details})")
    return status


def _complain_of_a_part(error: ModuleNotFoundError) -> None:
    """Krew's archive and the zip application have no gRPC."""
    name = str(error.name).partition(".")[0]
    if name == "cni_calico":
        raise error
    _note(f"cannot run this command: {name} is not in this calicoctl")
    _note("(kubectl's plugin and calicoctl.pyz work with Kubernetes alone; etcd takes the calicoctl of a release)")


def _may_find(argv: Sequence[str]) -> bool:
    """Whether a command line that cannot be understood names such a command: 1 would say that something changes."""
    words = [one for one in argv if not one.startswith("-")]
    return (*words[:1], "") in _FINDING or any(pair in _FINDING for pair in pairwise(words))


def run(argv: Sequence[str], environ: Mapping[str, str], prog: str = "calicoctl") -> int:
    """Run a command line and return its exit status."""
    failing = 2 if _may_find(argv) else 1
    try:
        return _run(argv, environ, prog)
    except OutputFailed as e:
        _note(e.message)
        return failing
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone: write nothing more, not even at exit
        return failing
    except Exception:
        if failing == 1:
            raise
        from traceback import print_exc

        print_exc()
        return failing  # an end by the exception is 1, which says that something changes


def _run(argv: Sequence[str], environ: Mapping[str, str], prog: str) -> int:
    from cni_calico.ctl.command_line.arguments import parse_arguments

    failing = 2 if _may_find(argv) else 1
    try:
        arguments = parse_arguments(argv, prog)
        words = (arguments.command, arguments.subcommand)
        failing = 2 if words in _FINDING else 1
        reads = arguments.filename == "-" or "-" in getattr(arguments, "overlay", ())
        arguments.stdin = _read_stdin(words[1] == "import") if reads else ""
        arguments.prog, arguments.warn, arguments.note, arguments.say = prog, _warn, _note, _say
        arguments.end_now, arguments.progress = _end_now, _show_progress
        arguments.look = _look(environ)
        _say(_run_command(" ".join(filter(None, words)), arguments, environ))
        return 0
    except CalicoError as e:
        return _complain(e, failing)
    except ModuleNotFoundError as e:
        _complain_of_a_part(e)
        return failing
    except KeyboardInterrupt:
        return INTERRUPTED


def _run_command(name: str, arguments: Namespace, environ: Mapping[str, str]) -> str:
    dry_run = arguments.dry_run
    standalone = find_standalone(name, dry_run=dry_run)
    if standalone is not None:
        return standalone(arguments, environ)
    from cni_calico.ctl.opening import open_session

    command = find_command(name, watching=arguments.watch)
    creating = name in _CREATING and dry_run == "none"
    with open_session(arguments, environ, creating=creating) as session:
        if dry_run == "server":
            from cni_calico.ctl.resources.rehearsal import rehearse

            session = rehearse(session)
        if name in _WRITING:
            from cni_calico.ctl.datastore.initialize import initialize

            initialize(session)
        try:
            said = command(session, arguments)
        finally:
            if session.written:
                from cni_calico.ctl.policy.consequences import warn_of_consequences

                warn_of_consequences(session, arguments, session.written)
        return said + ("" if dry_run == "none" else "Nothing was changed: --dry-run=server.\n")


def main() -> int:
    from cni_calico import faults

    faults.install_from_environment(os.environ)
    gc.set_threshold(_SELDOM, *gc.get_threshold()[1:])
    is_plugin = os.path.basename(sys.argv[0]) == KUBECTL_PLUGIN
    return run(sys.argv[1:], os.environ, "kubectl calico" if is_plugin else "calicoctl")


if __name__ == "__main__":
    sys.exit(main())
