"""An event that signal handlers set: never a deadlock, and the same as threading.Event otherwise."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cni_calico.daemon.stopping import Stopping

# the signal comes anywhere, also inside wait; threading.Event hangs here within a second
RACE = """
import random, signal, time
from cni_calico.daemon.stopping import Stopping
current = []
signal.signal(signal.SIGALRM, lambda *_: current[-1].set())
end, count = time.monotonic() + 2, 0
while time.monotonic() < end:
    stopping = Stopping()
    current[:] = [stopping]
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00005, 0.0004))
    while not stopping.is_set():
        stopping.wait(0)
    count += 1
print(count > 10)
"""


# the last object goes when the interpreter has already taken its signal handlers away
PROGRAM = """
import os, signal
from cni_calico.daemon.stopping import Stopping

class Last:
    def __init__(self):
        self.kill, self.pid = os.kill, os.getpid()
    def __del__(self):
        self.kill(self.pid, {number})

stopping = Stopping()
stopping.on_signals(signal.SIGTERM, signal.SIGINT)
os.kill(os.getpid(), {number})
assert stopping.wait(20)
last = Last()
print("stopping")
"""


ROOT = Path(__file__).parents[3]


def test_a_handler_may_interrupt_a_wait():
    done = subprocess.run([sys.executable, "-c", RACE], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


def test_waits():
    stopping = Stopping()
    begun = time.monotonic()
    assert not stopping.wait(0) and not stopping.wait(0.05) and not stopping.is_set()
    assert time.monotonic() - begun >= 0.04
    stopping.set()
    stopping.set()
    assert stopping.wait(0) and stopping.wait() and stopping.wait(10) and stopping.is_set()
    with pytest.raises(TypeError):
        stopping.clear()


def test_every_thread_is_woken():
    stopping, woken = Stopping(), []
    threads = [threading.Thread(target=lambda: woken.append(stopping.wait(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    stopping.set()
    for thread in threads:
        thread.join(30)
    assert woken == [True] * 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_kill_who_is_stopping(number):
    program = PROGRAM.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "stopping\n"), done.stderr


ELSEWHERE = """
import signal, threading, time
from cni_calico.daemon.stopping import Stopping

stopping = Stopping()
stopping.on_signals(signal.SIGTERM)

def take():
    while main.native_id not in asleep():
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

def asleep():
    state = open(f"/proc/self/task/{main.native_id}/stat").read().rpartition(")")[2].split()[0]
    return (main.native_id,) if state == "S" else ()

main = threading.main_thread()
threading.Thread(target=take, daemon=True).start()
print("stopping" if stopping.wait(WAIT) else "never told")
"""


@pytest.mark.parametrize("wait", ["None", "600"])
def test_a_signal_that_another_thread_takes_is_noticed(wait):
    """Its handler runs in the main thread, which the signal did not wake."""
    program = ELSEWHERE.replace("WAIT", wait)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "stopping\n"), done.stderr
