"""What a burst needed goes back to the kernel, also from between what stays."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
from cni_calico.kernel.memory import resident_bytes, trim_memory
first = resident_bytes()
burst = [bytes(4000) for _ in range(50000)]
stays = burst[::100]
most = resident_bytes()
del burst
kept = resident_bytes()
trim_memory()
print(first, most, kept, resident_bytes())
"""


def test_memory_goes_back_after_a_burst():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    first, most, kept, after = map(int, done.stdout.split())
    assert most - first > 150_000_000
    assert kept - first > 100_000_000, "the C library gives it back by itself: this module is not needed any more"
    assert after - first < 30_000_000


SPARED = """
import gc, weakref
from cni_calico.kernel.memory import collect_all, spare_collections
class One: pass
one = One(); one.itself = one; seen = weakref.ref(one)
gc.collect(); spare_collections()
del one
gc.collect()
print(seen() is None)
collect_all()
print(seen() is None, gc.get_freeze_count())
"""


def test_garbage_that_collections_passed_over_is_collected_at_last():
    done = subprocess.run([sys.executable, "-c", SPARED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "0"]


ARENAS = """
import sys, threading
from cni_calico.kernel.memory import share_arenas
if "shared" in sys.argv:
    share_arenas()
met = threading.Barrier(8)
def work():
    kept = bytes(4000)
    met.wait()
threads = [threading.Thread(target=work) for _ in range(7)]
for one in threads:
    one.start()
mapped = [line for line in open("/proc/self/maps") if " rw-p " in line and line.endswith(" 0 \\n")]
begins = [int(line.partition("-")[0], 16) for line in mapped]
print(sum(begin % (64 << 20) == 0 for begin in begins))
met.wait()
"""


def test_threads_share_what_they_keep():
    """Of the C library's arenas, each a piece of 64 MB, there is one beside the first thread's."""
    counts = []
    for asked in ("shared", "alone"):
        command = [sys.executable, "-c", ARENAS, asked]
        counts.append(int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout))
    assert counts[0] == 1 < counts[1]
