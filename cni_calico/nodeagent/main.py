"""Entry point of ``calico-node``: the only module here that prints and decides the exit status.

Rule: import only what the given flags need; probes start every few seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from cni_calico import directories
from cni_calico.daemon.supervisor import ChildService
from cni_calico.nodeagent.flags import COMMANDS, PROBES, SERVICES, UsageError, parse_flags, render_usage

USAGE = 2
SV_USAGE = 100  # as runit's sv


def main() -> int:
    """Run what the command line selects; returns the exit status."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "-help", "--help"):
        sys.stdout.write(render_usage())
        return 0
    if arguments[:1] == ["sv"]:
        return _control_services(arguments[1:])
    try:
        chosen, values = parse_flags(arguments)
    except UsageError as e:
        sys.stderr.write(f"calico-node: {e}\n{render_usage()}")
        return USAGE
    if chosen & set(PROBES):
        return _probe(chosen, values)
    if "v" in chosen:
        from cni_calico import BUILD, __version__

        sys.stdout.write(f"v{__version__}{BUILD}\n")
        return 0
    if not chosen & {*COMMANDS, *SERVICES}:
        if "flows" in values:
            return _show_flows(values["flows"])
        sys.stderr.write(render_usage())
        return USAGE
    return _run(chosen)


def _control_services(arguments: Sequence[str]) -> int:
    from cni_calico.nodeagent.service_control import control

    try:
        return control(arguments, os.environ, sys.stdout.write)
    except UsageError as e:
        sys.stderr.write(f"{e}\n")
        return SV_USAGE


def _probe(chosen: set[str], values: Mapping[str, str]) -> int:
    from cni_calico.nodeagent.status.probes import run_probes

    notes: list[str] = []
    faults = run_probes(chosen, values, os.environ, notes)
    for note in notes:
        sys.stdout.write(f"calico-node: {note}\n")
    for fault in faults:
        sys.stderr.write(f"calico-node: {fault}\n")
    return 1 if faults else 0


def _show_flows(text: str) -> int:
    from cni_calico.errors import CalicoError
    from cni_calico.nodeagent.commands import show_flows

    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 9 and int(digits)):
        sys.stderr.write(f"calico-node: -flows needs a number of flows, negative to go on for ever, not {text!r}\n")
        return USAGE
    try:
        return show_flows(os.environ, int(text), _write_at_once)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is still to be written
        return 0
    except CalicoError as e:
        sys.stderr.write(f"calico-node: {e}\n")
        return 1


def _write_at_once(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _run(chosen: set[str]) -> int:
    from cni_calico.daemon.orphans import end_with_supervisor
    from cni_calico.errors import CalicoError
    from cni_calico.faults import install_from_environment

    install_from_environment(os.environ)
    if not chosen & {"run", "node-services"}:
        end_with_supervisor(os.environ)
    try:
        for name, command in _commands().items():
            if name in chosen:
                code = command(chosen)
                if code:
                    return code
        if not chosen & set(SERVICES):
            return 0
        return _serve(chosen & set(SERVICES))
    except CalicoError as e:
        sys.stderr.write(f"calico-node: {e}\n" + (f"calico-node: {e.details}\n" if e.details else ""))
        return 1


def _serve(chosen: set[str]) -> int:
    """The long-running parts. Each import comes when what it is for begins: the datastore and the kernel answer while
    Felix is imported, and policy does not wait for what the others need.
    """
    from cni_calico.kernel.memory import collect_as_usual, expect_growth, share_arenas

    share_arenas()
    expect_growth()  # until policies are in force (policing/engine.py): what is imported stays
    from cni_calico.daemon.stopping import Stopping
    from cni_calico.nodeagent.context.open import open_context

    stopping = Stopping()
    opened = open_context(os.environ, "agent", stopping.wait, running=True)
    from cni_calico.nodeagent.policing.enforce.ahead import look_ahead

    look = look_ahead(opened.felix, policed="felix" in chosen)
    from cni_calico.nodeagent.felix import Felix

    felix = Felix(chosen, os.environ, opened, stopping, look)
    felix.start()
    from cni_calico.nodeagent.parts import Parts

    if "felix" not in chosen:
        collect_as_usual()
    return Parts(felix).run()


def _commands() -> Mapping[str, Callable[[set[str]], int]]:
    """In the order in which they are carried out if several are given."""
    return {
        "init": _init,
        "hostpath-init": _init,
        "boot-table": _boot_table,
        "rehearse": _rehearse,
        "startup": _startup,
        "allocate-tunnel-addrs-run-once": _tunnels_once,
        "confd-run-once": _confd_once,
        "shutdown": _shutdown,
        "show-status": _show_status,
        "cni-server": _cni_server,
        "flow-recorder": _record_flows,
        "flows-pipe": _pipe_flows,
        "run": _supervise,
        "node-services": _supervise,
    }


def _init(chosen: set[str]) -> int:
    from cni_calico.nodeagent.commands import prepare_host

    return prepare_host(os.environ, best_effort="best-effort" in chosen)


def _boot_table(chosen: set[str]) -> int:
    from cni_calico.nodeagent.commands import close_workloads

    return close_workloads(os.environ)


def _rehearse(chosen: set[str]) -> int:
    from cni_calico.nodeagent.rehearsal.run import rehearse

    sys.stdout.write(rehearse(os.environ))
    return 0


def _startup(chosen: set[str]) -> int:
    from cni_calico.nodeagent.commands import start_up

    return start_up(os.environ)


def _tunnels_once(chosen: set[str]) -> int:
    from cni_calico.nodeagent.commands import allocate_once

    return allocate_once(os.environ, best_effort="best-effort" in chosen)


def _confd_once(chosen: set[str]) -> int:
    from cni_calico.nodeagent.commands import configure_once

    return configure_once(os.environ)


def _shutdown(chosen: set[str]) -> int:
    from cni_calico.nodeagent.commands import shut_down

    return shut_down(os.environ)


def _show_status(chosen: set[str]) -> int:
    from cni_calico.nodeagent.commands import describe_status

    sys.stdout.write(describe_status(os.environ))
    return 0


def _cni_server(chosen: set[str]) -> int:
    from cni_calico.server.run import run_server

    return run_server(os.environ)


def _record_flows(chosen: set[str]) -> int:
    from cni_calico.nodeagent.recording.process import record_flows

    return record_flows(os.environ)


def _pipe_flows(chosen: set[str]) -> int:
    from cni_calico.flows.pipe import pipe_flows

    try:
        return pipe_flows(directories.run_dir(os.environ), sys.stdin.fileno(), sys.stdout.fileno())
    except BrokenPipeError:
        return 0  # nobody reads what is still to be written


def _supervise(chosen: set[str]) -> int:
    from cni_calico.daemon.settings_table import TRUE
    from cni_calico.daemon.supervisor import Supervisor, own_command, services_of_run
    from cni_calico.log import Log, wants_json
    from cni_calico.nodeagent.status.file import forget_status
    from cni_calico.nodeagent.status.unit import VARIABLE, UnitReadiness, forget_answered

    nodename_file = directories.nodename_file(os.environ)
    data_plane = os.environ.get("CALICO_DISABLE_FELIX", "").strip().lower() not in TRUE
    services = services_of_run(
        startup="run" in chosen,
        was_set_up=lambda: os.path.exists(nodename_file),
        data_plane=data_plane,
        docker=os.environ.get("CALICO_LIBNETWORK_ENABLED", "").strip().lower() in TRUE,
    )
    run_dir = directories.run_dir(os.environ)
    log = Log("info", context="supervisor: ", as_json=wants_json(os.environ))
    try:
        forget_status(run_dir)
        forget_answered(run_dir)
    except OSError as e:
        log.warning(f"cannot remove the status of the agent that ran before: {e.strerror}")
    readiness = UnitReadiness(
        dict(os.environ),
        run_dir,
        log,
        may_be_here=VARIABLE in os.environ and not _has_embedded_datastore(),
        data_plane=data_plane,
    )
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}  # a child speaks for itself only
    command = own_command()
    return Supervisor(services, command, environ, log, lambda running: _publish(run_dir, running), readiness.look).run()


def _has_embedded_datastore() -> bool:
    """It needs nothing that has to be started first."""
    from cni_calico.cni.fields import JsonFields
    from cni_calico.cni.netconf import parse_datastore
    from cni_calico.errors import InvalidConfig

    try:
        return parse_datastore(JsonFields({}), os.environ).type == "local"
    except InvalidConfig:  # start-up says so
        return False


def _publish(run_dir: str, services: Sequence[ChildService]) -> None:
    """For ``sv``; a failure only disables that."""
    from cni_calico.errors import KernelError
    from cni_calico.nodeagent.service_control import write_services

    try:
        write_services(run_dir, services)
    except KernelError as e:
        sys.stderr.write(f"calico-node: {e}\n")


if __name__ == "__main__":
    sys.exit(main())
