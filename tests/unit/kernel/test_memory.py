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
