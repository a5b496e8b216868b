"""The whole agent (calico-node -felix) on a lab's node, of this version and of the one before.

Rule: the version before is the commit ``BEFORE`` of this repository, run from its own sources; where the history is not
there (an archive, a shallow clone) there is nothing to upgrade from. A machine of tests/kernels, which has no history,
gets the sources as an archive that the variable ``EARLIER`` names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cni_calico.nodeagent.status.file import read_status
from tests.deadlines import until
from tests.netns.policing.lab import NODE, Lab

ROOT = Path(__file__).resolve().parents[3]
BEFORE = "313c8ac6f41ef7fe902e0004b4658dba7905d8c1"  # the last one in which the policy engine had no room of its own
EARLIER = "CNI_CALICO_EARLIER"


def write_earlier(archive: Path, commit: str = BEFORE) -> bool:
    """The sources of the version before, or of another commit; False: they are not here."""
    command = ["git", "archive", f"--output={archive}", commit, "cni_calico", "build/launch"]
    return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def compile_sources(archive: Path) -> None:
    """An emulated processor would take long for it."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as made:
        unpack(archive, Path(made))
        subprocess.run([sys.executable, "-m", "compileall", "-q", made], check=True)
        with tarfile.open(archive, "w") as tar:
            tar.add(made, ".")


def unpack(archive: Path, directory: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(directory)


def status(made: Lab) -> dict[str, Any]:
    return read_status(str(made.root / "run"))


@contextmanager
def agent(made: Lab, sources: Path, sentence: str = " are in force ") -> Iterator[Callable[[], None]]:
    """From sources, once it says of policies what has the sentence in it; gives what ends it in order."""
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(sources),
        "DATASTORE_TYPE": "local",
        "DATASTORE_PATH": str(made.root / "store.db"),
        "NODENAME": NODE,
        "CALICO_RUN_DIR": str(made.root / "run"),
        "CALICO_STATE_DIR": str(made.root / "state"),
        "FELIX_ENDPOINTSTATUSPATHPREFIX": str(made.root),
        **made.always,
    }
    log = agent_log(made, sources)
    command = ["nsenter", f"--net={made.host.path}", sys.executable, "-B", "build/launch/calico-node.py", "-felix"]
    with log.open("ab") as output:
        running = subprocess.Popen(command, cwd=sources, env=environ, stdout=output, stderr=subprocess.STDOUT)

    def says_so() -> bool:
        assert running.poll() is None, log.read_text()
        said = status(made)
        return said.get("pid") == running.pid and sentence in said["policing"]["sentence"]

    def end() -> None:
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, log.read_text()

    try:
        until(says_so, f"{sources} says: {sentence}")
        yield end
    except AssertionError as e:
        raise AssertionError(f"{e}\n{log.read_text()}") from None
    finally:
        running.kill()
        running.wait()


def agent_log(made: Lab, sources: Path) -> Path:
    return made.root / f"{sources.name}.log"
