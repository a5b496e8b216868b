"""Entry point of ``calico-docker``.

Rule: the only module here that prints and decides the exit status.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence

WRONG_USAGE = 2
_HELP = """usage: calico-docker [-live | -ready | -status | -v]

Docker's network driver 'calico' and IPAM driver 'calico-ipam' (docs/docker.md). Settings are environment variables.

  -live, -ready  exit with 0 if a calico-docker answers Docker's calls on this host
  -status        show its networks, endpoints and ports on this host, and what is wrong; exits as -ready does
"""
_PROBE = b"POST /Plugin.Activate HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n\r\n"
_PROBE_S = 5.0


def main() -> int:
    """Run until a signal; returns the exit status."""
    return run(sys.argv[1:], os.environ)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    words = [word.replace("--", "-", 1) if word.startswith("--") else word for word in arguments]
    if words and words[0] in ("-h", "-help"):
        sys.stdout.write(_HELP)
        return 0
    if words in (["-v"], ["-version"]):
        from cni_calico import BUILD, __version__

        sys.stdout.write(f"v{__version__}{BUILD}\n")
        return 0
    if words and words not in (["-live"], ["-ready"], ["-status"]):
        sys.stderr.write(f"calico-docker: there is no argument {words[0]!r}\n{_HELP}")
        return WRONG_USAGE
    from cni_calico.docker.run import DockerProcess
    from cni_calico.docker.settings import parse_docker_settings
    from cni_calico.errors import CalicoError
    from cni_calico.faults import install_from_environment

    install_from_environment(environ)
    try:
        if words:
            answers = _ask(f"{parse_docker_settings(environ).plugin_dir}/calico.sock")
            if words == ["-status"]:
                _print_status(environ, answers=answers == 0)
            return answers
        return DockerProcess(environ).run()
    except CalicoError as e:
        lines = [str(e), *([e.details] if e.details else [])]
        sys.stderr.write("".join(f"calico-docker: {line}\n" for line in lines))
        return 1


def _ask(path: str) -> int:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(_PROBE_S)
            asked.connect(path)
            asked.sendall(_PROBE)
            answer = asked.recv(4096)
    except OSError as e:
        sys.stderr.write(f"calico-docker: nobody answers at {path}: {e.strerror or e}\n")
        return 1
    return 0 if b" 200 " in answer.split(b"\r\n")[0] else 1


def _print_status(environ: Mapping[str, str], *, answers: bool) -> None:
    """Raises KernelError, InvalidConfig."""
    from cni_calico.directories import state_dir
    from cni_calico.docker.settings import read_docker_node
    from cni_calico.docker.state import DockerState
    from cni_calico.docker.status import render_status
    from cni_calico.kernel.files import Files
    from cni_calico.log import SILENT

    state = DockerState(Files(), state_dir(environ), SILENT)
    state.read(only_look=True)
    sys.stdout.write(render_status(read_docker_node(environ, Files()), state, answers=answers))


if __name__ == "__main__":
    sys.exit(main())
