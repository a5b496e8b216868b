"""Entry point of ``calicoctl``: the only module here that prints and decides the exit status."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

from cni_calico.errors import CalicoError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_calico.ctl.session import Session

_WRITING = ("create", "replace", "apply", "delete", "patch", "label")
_CREATING = (*_WRITING, "ipam configure", "datastore import")


def _commands() -> dict[str, Callable[[Session, Namespace], str]]:
    from cni_calico.ctl import commands, migrate, restore, version
    from cni_calico.ctl.ipam import check as ipam_check
    from cni_calico.ctl.ipam import release as ipam_release
    from cni_calico.ctl.ipam import show as ipam_show
    from cni_calico.ctl.ipam import split as ipam_split

    return {
        "get": commands.get,
        "create": commands.create,
        "replace": commands.replace,
        "apply": commands.apply,
        "delete": commands.delete,
        "patch": commands.patch,
        "label": commands.label,
        "ipam show": ipam_show.show,
        "ipam check": ipam_check.check,
        "ipam release": ipam_release.release,
        "ipam configure": ipam_show.configure,
        "ipam split": ipam_split.split,
        "datastore lock": migrate.lock,
        "datastore unlock": migrate.unlock,
        "datastore export": migrate.export,
        "datastore import": restore.load,
        "version": version.version,
    }


def _host_commands() -> dict[str, Callable[[Namespace, Mapping[str, str]], str]]:
    """The commands that are about this host and need no datastore."""
    from cni_calico.ctl import node_diags, node_status

    return {"node status": node_status.show, "node diags": node_diags.collect}


def _warn(problem: object) -> None:
    print(f"Warning: {problem}", file=sys.stderr)


def _note(text: object) -> None:
    print(text, file=sys.stderr)


def _complain(error: CalicoError) -> None:
    print(getattr(error, "output", ""), end="")
    print(error.message, file=sys.stderr)
    if error.details:
        print(f"({error.details})", file=sys.stderr)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what the command line says; the exit status."""
    from cni_calico.ctl.arguments import parse_arguments

    try:
        arguments = parse_arguments(argv)
        if arguments.show_version:
            arguments.command = "version"
        name = " ".join(filter(None, (arguments.command, getattr(arguments, "subcommand", None))))
        arguments.stdin = sys.stdin.read() if getattr(arguments, "filename", "") == "-" else ""
        arguments.warn, arguments.note = _warn, _note
        print(_run_command(name, arguments, environ), end="")
        return 0
    except CalicoError as e:
        _complain(e)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone: nothing more to say, also not at exit
        return 1


def _run_command(name: str, arguments: Namespace, environ: Mapping[str, str]) -> str:
    if arguments.command == "node":
        return _host_commands()[name](arguments, environ)
    import time
    import uuid

    from cni_calico.ctl.initialize import initialize
    from cni_calico.ctl.session import Session
    from cni_calico.ctl.settings import read_config, require_present
    from cni_calico.datastore.connect import open_datastore
    from cni_calico.deadline import Deadline
    from cni_calico.model.names import DEFAULT_PREFIX

    def now() -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    config = read_config(arguments.config, environ)
    if name not in _CREATING:
        require_present(config)
    # what an export out of Kubernetes records of the pods' interfaces: as the CNI plugin reads it
    prefix = environ.get("FELIX_INTERFACEPREFIX", "").split(",")[0].strip()
    store = open_datastore(config, veth_prefix=prefix or DEFAULT_PREFIX)
    try:
        session = Session(store, Deadline.after(arguments.timeout), now, lambda: str(uuid.uuid4()))
        # every backend has this hook (see Datastore.list)
        setattr(store, "corrupt", session.note_damaged)  # noqa: B010
        if name in _WRITING:
            initialize(session)
        text = _commands()[name](session, arguments)
        for _, why in session.take_damaged():
            _note(f"Left out: {why}")
        return text
    finally:
        store.close()


def main() -> int:
    import os

    from cni_calico import faults

    faults.install_from_environment(os.environ)
    return run(sys.argv[1:], os.environ)


if __name__ == "__main__":
    sys.exit(main())
