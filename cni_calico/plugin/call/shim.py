"""The start of the Python executables ``calico`` and ``calico-ipam``, where milliseconds count.

Rule: import nothing that the frozen interpreter has not loaded already, except what the case at hand needs. VERSION and
-v are answered here; a call goes to the resident server if one is listening; otherwise it runs in this process.

In the bundle the native front (build/front) runs first, talks to the server, and executes this with one of the two
arguments below if the call has to run here. When run from the sources or as a package there is no front.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cni_calico.cni.answer import Answer
    from cni_calico.cni.environment import Call
    from cni_calico.plugin.call.services import Services

    Serve = Callable[[Call, Services], Answer]
    Load = Callable[[], Serve]
    Flags = Mapping[str, Callable[[bytes], int]]

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
SUPPORTED = '["' + '","'.join(VERSIONS) + '"]'
CURRENT = "1.1.0"
SERVE_HERE, SERVE_HERE_STUCK = "-one-shot", "-one-shot-server-stuck"  # the front has already tried to reach a server
STUCK_TIMEOUT_S = 20.0  # for a call that a server has held up already: the runtime does not wait forever


def read_stdin() -> bytes:
    """All of stdin; empty if it is closed."""
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(0, 65536)
        except OSError:
            chunk = b""
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def write_stdout(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def version_answer(stdin: bytes) -> bytes:
    """The answer to VERSION: the cniVersion found in stdin if it is supported, else the newest."""
    _, found, rest = stdin.partition(b'"cniVersion"')
    asked = rest.partition(b'"')[2].partition(b'"')[0].decode("ascii", "replace") if found else ""
    version = asked if asked in VERSIONS else CURRENT
    return f'{{"cniVersion":"{version}","supportedVersions":{SUPPORTED}}}\n'.encode()


def run(executable: str, arguments: list[str], load: Load, flags: Flags | None = None) -> int:
    """Serve one execution of ``calico`` or ``calico-ipam``; the exit status.

    ``load`` imports and returns the executable's ``serve``; ``flags`` maps further flags to what runs for them.
    """
    _require_standard_descriptors()
    if arguments and _is_no_flag(arguments[0]) and os.environ.get("CNI_COMMAND"):
        arguments = []  # everything about a call is in its environment, as upstream does it
    try:
        return _run(executable, arguments, load, flags)
    except KeyboardInterrupt:
        return 130  # everything that was begun has been undone


def _is_no_flag(argument: str) -> bool:
    """Whether an argument ends the flags: upstream stops reading its command line at the first such argument."""
    return not argument.startswith("-") or argument in ("-", "--")


def _require_standard_descriptors() -> None:
    """A caller may have closed some of them: the next file opened, perhaps a lock, would then receive the
    log's lines.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one


def _run(executable: str, arguments: list[str], load: Load, flags: Flags | None) -> int:
    if arguments in ([SERVE_HERE], [SERVE_HERE_STUCK]):
        exit_code, stdout = serve_here(load, os.environ, read_stdin(), server_is_stuck=arguments == [SERVE_HERE_STUCK])
    elif arguments:
        return _run_flags(executable, arguments, flags or {})
    elif os.environ.get("CNI_COMMAND") == "VERSION":
        exit_code, stdout = 0, version_answer(read_stdin())
    else:
        exit_code, stdout = serve_call(executable, load, os.environ, read_stdin())
    write_stdout(stdout)
    return exit_code


def serve_call(executable: str, load: Load, environ: Mapping[str, str], stdin: bytes) -> tuple[int, bytes]:
    """(exit status, stdout) of a call: from the server if one is listening, else from this process."""
    server_is_stuck = False
    if environ.get("CNI_COMMAND"):
        served, server_is_stuck = _serve_there(executable, environ, stdin)
        if served is not None:
            return served
    return serve_here(load, environ, stdin, server_is_stuck=server_is_stuck)


def socket_path(environ: Mapping[str, str]) -> str:
    from cni_calico.directories import CNI_SOCKET, run_dir

    return f"{run_dir(environ)}/{CNI_SOCKET}"


def _serve_there(executable: str, environ: Mapping[str, str], stdin: bytes) -> tuple[tuple[int, bytes] | None, bool]:
    """The server's answer (None if there is none), and whether a server has taken the call without answering."""
    path = socket_path(environ)
    try:
        os.stat(path)
    except OSError:
        return None, False  # no server on this host: not even its client is imported
    from cni_calico.plugin.call.client import ServerStuck, call_server

    try:
        return call_server(path, executable, environ, stdin), False
    except ServerStuck:
        return None, True  # whoever gets the attachment's lock continues


def serve_here(load: Load, environ: Mapping[str, str], stdin: bytes, *, server_is_stuck: bool) -> tuple[int, bytes]:
    """(exit status, stdout) of a call that runs here; ``server_is_stuck``: a server may be working on it too."""
    answer = _serve(load, environ, stdin, server_is_stuck=server_is_stuck)
    return answer.exit_code, answer.stdout.encode()


def _serve(load: Load, environ: Mapping[str, str], stdin: bytes, *, server_is_stuck: bool) -> Answer:
    from cni_calico.cni.answer import answer_error
    from cni_calico.cni.environment import parse_call
    from cni_calico.cni.versions import CURRENT as NEWEST
    from cni_calico.errors import CalicoError
    from cni_calico.faults import install_from_environment
    from cni_calico.plugin.call.services import Services

    started = time.monotonic()
    install_from_environment(environ)
    try:
        call = parse_call(environ, stdin)
    except CalicoError as e:
        return answer_error(e, NEWEST)
    services = Services(environ)
    services.server_is_stuck = server_is_stuck
    if server_is_stuck:
        services.timeout_s = STUCK_TIMEOUT_S
    try:
        answer = load()(call, services)
        if services.log.file_path:
            from cni_calico.plugin.call.outcome import describe_success, log_success

            log_success(describe_success(call, answer, time.monotonic() - started), services.log)
        return answer
    finally:
        services.close()


def _run_flags(executable: str, arguments: list[str], flags: Flags) -> int:
    from cni_calico import BUILD, __version__

    if arguments in (["-v"], ["--version"], ["-version"]):
        write_stdout(f"v{__version__}{BUILD}\n".encode())
        return 0
    if len(arguments) == 1 and arguments[0] in flags:
        return flags[arguments[0]](read_stdin())
    known = " ".join(["-v", *flags])
    sys.stderr.write(f"{executable}: unknown arguments {arguments}: a CNI runtime calls it without any; {known}\n")
    return 2
