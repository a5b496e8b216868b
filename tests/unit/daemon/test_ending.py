"""A program that was told to stop ends, whatever its threads wait for."""

from __future__ import annotations

import subprocess
import sys
import threading

from cni_calico.daemon.ending import end_in_time
from cni_calico.daemon.stopping import Stopping

PROGRAM = """
import signal, threading
from cni_calico.daemon.ending import end_in_time
from cni_calico.daemon.stopping import Stopping
stopping = Stopping()
stopping.on_signals(signal.SIGTERM)
end_in_time(stopping, 0.1, lambda: 7, lambda text: print(text, flush=True))
threading.Thread(target=threading.Event().wait, name="stuck").start()  # the interpreter waits for it as it ends
print("ready", flush=True)
stopping.wait()
"""


def test_a_thread_that_hangs_does_not_keep_it():
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(60) == 7
        assert process.stdout.read() == "ending without waiting any longer for stuck\n"


def test_leaving_does_not_wait_for_the_interpreters_end():
    """What is printed arrives; a thread that the interpreter would wait for does not matter."""
    code = (
        "import threading\nfrom cni_calico.daemon.ending import leave\n"
        "threading.Thread(target=threading.Event().wait).start()\nprint('done')\nleave(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (5, "done\n")


def test_nothing_happens_before_it_is_told():
    left, stopping = [], Stopping()
    gate = threading.Event()

    def leave(status: int) -> None:
        left.append(status)
        gate.set()

    thread = end_in_time(stopping, 0.0, lambda: 0, lambda text: None, leave)
    assert thread.is_alive() and not left
    stopping.set()
    assert gate.wait(60) and left == [0]
