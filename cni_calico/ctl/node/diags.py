"""``calicoctl node diags``: one archive of what is needed to find out what is wrong with this host.

Rule: changes nothing; if something cannot be collected, the archive says why. Everything passes through redaction,
which knows the passwords and tokens in use here; even so, only its owner can read the archive.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping

from cni_calico import BUILD, __version__, directories
from cni_calico.ctl.node import status
from cni_calico.ctl.output.archive import ArchiveMember, write_archive
from cni_calico.ctl.output.looks import PLAIN
from cni_calico.ctl.output.redaction import secrets_in
from cni_calico.ctl.output.values import TABLE
from cni_calico.ctl.session import CommandFailed
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.process import run
from cni_calico.nodeagent.bgp.bird.control import BirdControl
from cni_calico.nodeagent.status import file as agent_status

CALICO_DIR = "/etc/calico"
TOKEN_FILE = f"{directories.SERVICE_ACCOUNT_DIR}/token"
COMMAND_S = 10.0
FILE_MAX_BYTES = 10 * 1024 * 1024  # of a log, taken from its end
_SEARCH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin")
_COMMANDS = {
    "system/date": "date",
    "system/hostname": "hostname",
    "system/kernel": "uname -a",
    "logs/journal": "journalctl --no-pager -n 20000 -u calico-node -u calico-cni",
    "network/links": "ip -d -s link",
    "network/addresses": "ip addr",
    "network/routes-v4": "ip -4 route show table all",
    "network/routes-v6": "ip -6 route show table all",
    "network/rules-v4": "ip -4 rule",
    "network/rules-v6": "ip -6 rule",
    "network/neighbours": "ip neigh",
    "network/forwarding-database": "bridge fdb show",
    "network/sockets": "ss -anp",
    "network/nftables": "nft list ruleset",
    "network/iptables-v4": "iptables-save -c",
    "network/iptables-v6": "ip6tables-save -c",
    "network/iptables-legacy-v4": "iptables-legacy-save -c",
    "network/iptables-legacy-v6": "ip6tables-legacy-save -c",
    "network/ipsets": "ipset list",
}
_BIRD_COMMANDS = ("show status", "show protocols all", "show route all")
# The variables we read begin with these; the rest of the environment is left out.
_PREFIXES = """
AS= AUTODETECT_ BGP_ CALICO_ CLUSTER_TYPE DATASTORE_ DISABLE_NODE_IP_CHECK ETCD_ FELIX_ HOSTNAME IP= IP6= IP_ IP6_
K8S_ KUBECONFIG KUBERNETES_SERVICE_ NODENAME NO_DEFAULT_POOLS USE_POD_CIDR WAIT_FOR_DATASTORE
"""
_VARIABLES = tuple(_PREFIXES.split())


def collect(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises CommandFailed if the archive cannot be written."""
    items, secrets = host_items(environ, arguments.log_dir)
    stamp = time.strftime("%Y%m%d_%H%M%S")
    name = f"calico-diags-{stamp}"
    target = arguments.archive or f"/tmp/{name}-{os.getpid()}.tar.gz"  # noqa: S108 - made exclusively, see write_archive
    count = write_archive(target, name, items, secrets)
    return (
        f"Diagnostics saved to {target} ({count} files).\n"
        "What looks like a secret is hidden in it; addresses and names are not: see who gets it.\n"
    )


def host_items(environ: Mapping[str, str], log_dir: str = "") -> tuple[Iterator[ArchiveMember], set[str]]:
    """What is collected of this host, and the secrets that are in use here. ``log_dir``: "" is the configured one."""
    run_dir = directories.run_dir(environ)
    logs = log_dir or environ.get("CALICO_LOG_DIR") or directories.LOG_DIR
    bird_dir = environ.get("CALICO_BIRD_CONFIG_DIR") or directories.BIRD_CONFIG_DIR
    return _items(environ, run_dir, logs, bird_dir), _secrets(environ, run_dir, bird_dir)


def _items(environ: Mapping[str, str], run_dir: str, log_dir: str, bird_dir: str) -> Iterator[ArchiveMember]:
    yield "version", f"{__version__}{BUILD}\n"
    yield "status", _status(environ)
    for name, command in _COMMANDS.items():
        yield name, _run(command)
    yield from _bird(run_dir)
    yield from _files("logs", log_dir)
    yield from _files("config/bird", bird_dir)
    yield from _files("config/cni", directories.CNI_NET_DIR, ".conf", ".conflist", ".template")
    yield from _files("config/calico", CALICO_DIR, ".env", ".cfg", below=False)
    yield "status.json", _read(agent_status.path_in(run_dir))
    yield "config/environment", _environment(run_dir)


# -- each of these collects one thing, and none fails -----------------------------------------------------------------


def _status(environ: Mapping[str, str]) -> str:
    try:
        return status.show(Namespace(output=TABLE, look=PLAIN), environ)
    except CommandFailed as e:
        return f"{e.output}{e}\n"


def _run(command: str) -> str:
    words = command.split()
    path = next((p for p in (f"{d}/{words[0]}" for d in _SEARCH) if os.access(p, os.X_OK)), "")
    if not path:
        return f"{words[0]} is not installed\n"
    try:
        done = run([path, *words[1:]], env={"PATH": ":".join(_SEARCH)}, deadline=Deadline.after(COMMAND_S))
    except CalicoError as e:
        return f"{e}\n"
    tail = f"{command}: exit status {done.rc}\n" if done.rc else ""
    return (done.stdout + done.stderr).decode("utf-8", "surrogateescape") + tail


def _bird(run_dir: str) -> Iterator[ArchiveMember]:
    for command in _BIRD_COMMANDS:
        try:
            deadline = Deadline.after(COMMAND_S)
            with BirdControl(f"{run_dir}/{directories.BIRD_SOCKET}", deadline) as control:
                text = "\n".join(line for _, line in control.ask(command, deadline).lines)
        except CalicoError as e:
            text = str(e)
        yield "bird/" + command.replace(" ", "-"), f"{text}\n"


def _files(name: str, directory: str, *endings: str, below: bool = True) -> Iterator[ArchiveMember]:
    """The files in (and below) a directory; if endings are given, only those with one of them."""
    if not os.path.isdir(directory):
        yield f"{name}/MISSING", f"there is no directory {directory}\n"
        return
    for parent, _, files in sorted(os.walk(directory)):
        for file in sorted(files) if below or parent == directory else ():
            path = f"{parent}/{file}"
            if os.path.isfile(path) and (not endings or file.endswith(endings)):
                yield f"{name}/{os.path.relpath(path, directory)}", _read(path)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            left_out = max(0, os.fstat(file.fileno()).st_size - FILE_MAX_BYTES)
            file.seek(left_out)
            data = file.read(FILE_MAX_BYTES)
    except OSError as e:
        return f"cannot read {path}: {e.strerror or e}\n"
    head = f"(without its first {left_out} bytes)\n" if left_out else ""
    return head + data.decode("utf-8", "surrogateescape")


def _environment(run_dir: str) -> str:
    """The environment variables that the agent reads, with the agent's values."""
    pid = agent_status.read_status(run_dir).get("pid")
    if not isinstance(pid, int):
        return "the agent has written no status\n"
    variables = _read(f"/proc/{pid}/environ").split("\0")
    return "".join(f"{text}\n" for text in sorted(variables) if text.startswith(_VARIABLES) or "cannot read" in text)


def _secrets(environ: Mapping[str, str], run_dir: str, bird_dir: str) -> set[str]:
    """The secrets in use on this host: from the environment (the agent's and ours) and all configuration files."""
    ours = "".join(f"{name}={value}\n" for name, value in environ.items() if f"{name}=".startswith(_VARIABLES))
    texts = [ours, _environment(run_dir)]
    for directory in (bird_dir, directories.CNI_NET_DIR, CALICO_DIR):
        texts += [text for name, text in _files("", directory) if not name.endswith("MISSING")]
    kubeconfigs = {environ.get("KUBECONFIG", "")}
    kubeconfigs |= {line.partition("=")[2] for line in texts[1].splitlines() if line.startswith("KUBECONFIG=")}
    texts += [_read(path) for path in kubeconfigs if path]
    found = set().union(*map(secrets_in, texts))
    if os.path.exists(TOKEN_FILE):
        found.add(_read(TOKEN_FILE).strip())
    return {text for text in found if text}
