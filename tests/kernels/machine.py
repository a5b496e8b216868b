"""Virtual machines with Debian's stock kernels, in qemu without KVM; what tests/setup/kernels.sh fetched is in them.

Rule: a machine is one process of one thread, all in memory, and its clock counts instructions (a nanosecond each) and
skips idle time: a busy host makes it slow, but no time-out in it expires earlier, and nanoseconds in it are
instructions, the same in every run. Everything is read before the machine starts, because while it waits for a disk
such a clock runs ahead. Nothing of a machine stays but what its command leaves in /results.

By hand: ``python -m tests.kernels.machine 6.1 COMMAND``, with these sources as /product and its executables as
/opt/cni/bin, root, and every module of the kernel. ``--arch arm64`` has another processor, ``--product DIR`` another
directory as /product.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kernels.images import (
    ARCHITECTURES,
    SERIES,
    Kernel,
    archive,
    cache,
    find_kernel,
    find_root,
    make_image,
    own_architecture,
    prepared,
)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# not .hypothesis as a whole: what it has read of all modules would take a machine seven of its seconds
_LEFT_OUT = (
    *(".git", ".venv", ".cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache"),
    *(".hypothesis/examples", "build/go"),
)
_RESULTS_BYTES = 96 << 20
# norandmaps: qemu finds a translation again only at the same address, so each process would pay for its own, a quarter
# of the time in all
_PARAMETERS = "quiet panic=-1 mitigations=off nokaslr norandmaps"


@dataclass(frozen=True)
class Outcome:
    """``status``: the command's; None if the machine ended without one, or was ended. ``seconds``: of this host;
    ``processor_s``: of its processor.
    """

    status: int | None
    output: str
    seconds: float
    processor_s: float
    results: Path

    @property
    def costs(self) -> str:
        return f"{self.seconds:.0f} s ({self.processor_s:.0f} of the processor)"


def run(
    kernel: Kernel,
    command: str,
    results: Path,
    *,
    limit_s: float,
    memory_mib: int = 3072,
    disks: Sequence[Path] = (),
    reboots: bool = False,
    product: Path = ROOT,
) -> Outcome:
    """Boot, run ``command`` (of bash) in /product, and take its /results to the directory ``results``.

    ``product``: what becomes /product; a machine of another processor cannot use these sources' executables.
    ``limit_s``: of this host; a machine that takes longer is ended, and leaves only its console, which grows in the
    file ``console`` there. ``disks``: files that are /dev/vdb and so on, and keep what is written to them. A command
    that begins with ``#init`` is process 1 itself: it may become systemd, which the root has, and writes an archive of
    its results to /dev/vda. ``reboots``: until then the machine starts again whenever it ends, as another process: one
    that went on would pay for the translations that it has made.
    """
    root = find_root(kernel.architecture)
    assert root is not None, "tests/setup/kernels.sh makes it"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    began, used = time.monotonic(), _used_s()
    with tempfile.TemporaryDirectory(prefix="machine.", dir=cache(kernel.architecture)) as made:
        work = Path(made)
        if product == ROOT:  # an emulated processor would take long for it
            compiling = [sys.executable, "-m", "compileall", "-q", "cni_calico", "tests", "build"]
            subprocess.run(compiling, cwd=ROOT, check=True)
        initrd = _initrd(kernel, root, command, product, work)
        disk = work / "disk"
        disk.touch()
        os.truncate(disk, _RESULTS_BYTES)
        with (results / "console").open("wb") as console:
            argv = ["nice", f"--adjustment={os.environ.get('KERNELS_NICE') or 10}"]
            argv += _emulator(kernel, initrd, (disk, *disks), memory_mib)
            starts, ends_at = True, time.monotonic() + limit_s
            while starts:
                left = max(0.1, ends_at - time.monotonic())  # 0 would be no limit
                limited = ["timeout", "--kill-after=5", str(left), *argv]
                ended = subprocess.run(
                    limited, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, check=False
                )
                starts = reboots and ended.returncode == 0 and not _has_results(disk)
        # an empty disk is a machine that was ended
        subprocess.run(["tar", "xf", disk, "-C", results], capture_output=True, check=False)
    status, output = results / "status", results / "output"
    return Outcome(
        int(status.read_text()) if status.exists() else None,
        (output if output.exists() else results / "console").read_text(errors="replace"),
        time.monotonic() - began,
        _used_s() - used,
        results,
    )


def _has_results(disk: Path) -> bool:
    with disk.open("rb") as opened:
        return opened.read(1) != b"\0"


def _used_s() -> float:
    """What this process and the programs that it waited for have used of the processor; they are one at a time."""
    return sum(os.times()[:4])


def _emulator(kernel: Kernel, initrd: Path, disks: Sequence[Path], memory_mib: int) -> list[str]:
    at = kernel.architecture
    drives = (word for disk in disks for word in ("-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"))
    return [
        *(at.emulator, *at.options, "-smp", "1", "-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"),
        *("-m", str(memory_mib)),
        *("-no-reboot", "-display", "none", "-monitor", "none", "-nic", "none", "-serial", "stdio"),
        *(*drives, "-kernel", str(prepared(kernel) / "vmlinuz")),
        *("-initrd", str(initrd), "-append", f"console={at.console} {_PARAMETERS}"),
    ]


def _initrd(kernel: Kernel, root: Path, command: str, product: Path, work: Path) -> Path:
    """The initramfs with all images."""
    images = work / "images"
    images.mkdir()
    os.link(root, images / "root")
    os.link(prepared(kernel) / "modules", images / "modules")
    (images / "command").write_text(command)
    shutil.copy(HERE / "main.sh", images / "main")
    make_image(product, images / "product", *(_LEFT_OUT if product == ROOT else ()), packed=False)
    initrd = work / "initrd"
    with initrd.open("wb") as out:
        out.write((prepared(kernel) / "initrd").read_bytes())
        out.flush()
        archive(work, "images", out)
    shutil.rmtree(images)
    return initrd


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.machine")
    parser.add_argument("series", choices=SERIES)
    parser.add_argument("command", nargs="+", help="for bash; its /results come back")
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "machine-results")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS", help="of this host (900)")
    parser.add_argument("--memory", type=int, default=3072, metavar="MIB")
    parser.add_argument("--arch", choices=ARCHITECTURES, default=own_architecture().debian, help="Debian's name")
    parser.add_argument("--product", type=Path, default=ROOT, metavar="DIR", help="becomes /product (these sources)")
    given = parser.parse_args()
    kernel = find_kernel(given.series, ARCHITECTURES[given.arch])
    if kernel is None or find_root(kernel.architecture) is None:
        sys.stderr.write(
            f"no such kernel: KERNELS_ARCH={given.arch} tests/setup/kernels.sh {given.series} fetches it\n"
        )
        return 2
    sys.stderr.write(f"{kernel.version}, {given.arch}; its console: {given.results}/console\n")
    limits = {"limit_s": given.limit, "memory_mib": given.memory}
    done = run(kernel, " ".join(given.command), given.results, **limits, product=given.product.resolve())
    sys.stdout.write(done.output)
    sys.stderr.write(f"{done.costs}, results in {done.results}\n")
    return 99 if done.status is None else done.status


if __name__ == "__main__":
    sys.exit(main())
