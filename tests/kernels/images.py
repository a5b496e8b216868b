"""The images that machines boot from: kernels that tests/setup/kernels.sh fetched, taken apart; directories packed.

Rule: what is made of a kernel is made once for each version of this module, below LAB_CACHE/kernels/ARCH.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
LAB_CACHE = Path(
    os.environ.get("LAB_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cni-lab"
)
SERIES = ("5.10", "6.1", "6.12")
DEFAULT_SERIES = "6.1"
_MOUNTING = ("virtio_pci", "virtio_blk", "virtio_mmio", "loop", "squashfs", "overlay")  # what init.sh needs


@dataclass(frozen=True)
class Architecture:
    """Debian's name, and what qemu calls the machine and its console."""

    debian: str
    emulator: str
    options: tuple[str, ...]
    console: str


_X86 = "max,-erms,-fsrm"  # with these, memory is copied and cleared by an instruction for each byte
ARCHITECTURES = {
    "amd64": Architecture("amd64", "qemu-system-x86_64", ("-cpu", _X86), "ttyS0"),
    "arm64": Architecture("arm64", "qemu-system-aarch64", ("-machine", "virt", "-cpu", "cortex-a57"), "ttyAMA0"),
}
_OWN = {"x86_64": "amd64", "aarch64": "arm64"}


def own_architecture() -> Architecture:
    """KERNELS_ARCH, or this machine's. Raises KeyError for one that has no machine."""
    return ARCHITECTURES[os.environ.get("KERNELS_ARCH") or _OWN[platform.machine()]]


@dataclass(frozen=True)
class Kernel:
    """The newest package of a series that is there."""

    series: str
    package: Path
    architecture: Architecture

    @property
    def version(self) -> str:
        """Debian's, such as 6.1.192-2."""
        return self.package.name.split("_")[1]


def cache(architecture: Architecture) -> Path:
    return LAB_CACHE / "kernels" / architecture.debian


def is_foreign(architecture: Architecture) -> bool:
    """Whether its programs do not run on this machine."""
    return architecture.debian != _OWN.get(platform.machine())


def find_kernel(series: str, architecture: Architecture | None = None) -> Kernel | None:
    wanted = architecture or own_architecture()
    found = cache(wanted).glob(f"linux-image-{series}.*.deb")
    newest = max(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name.split("_")[1])], default=None)
    return None if newest is None else Kernel(series, newest, wanted)


def find_root(architecture: Architecture | None = None) -> Path | None:
    return next(cache(architecture or own_architecture()).glob("root-*.sqfs"), None)


def make_image(directory: Path, image: Path, *left_out: str, packed: bool = True) -> None:
    """``packed``: to be kept; what one machine reads once is not worth it."""
    argv = [
        "mksquashfs",
        str(directory),
        str(image),
        *(("-comp", "lzo") if packed else ("-noI", "-noD", "-noF", "-noX")),
        "-quiet",
        "-no-progress",
        "-no-xattrs",
        "-wildcards",
    ]
    if left_out:
        argv += ["-e", *left_out]
    subprocess.run(argv, check=True, capture_output=True)


def archive(directory: Path, top: str, out: IO[bytes]) -> None:
    """Everything below ``top`` in the format of an initramfs."""
    names = subprocess.run(["find", top], cwd=directory, capture_output=True, check=True).stdout
    subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=directory, input=names, stdout=out, check=True)


@functools.cache
def prepared(kernel: Kernel) -> Path:
    """The directory with a kernel's ``vmlinuz``, ``config``, image of ``modules`` and ``initrd``, which has the few
    modules that mounting needs; made once for a version of what makes it.
    """
    made_by = hashlib.sha256(Path(__file__).read_bytes() + (HERE / "init.sh").read_bytes()).hexdigest()[:8]
    directory = cache(kernel.architecture) / f"{kernel.package.stem}-{made_by}"
    with (cache(kernel.architecture) / ".prepare").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two machines may be the first with a kernel
        if not directory.exists():
            for older in directory.parent.glob(f"{kernel.package.stem}-*"):
                shutil.rmtree(older)
            with tempfile.TemporaryDirectory(prefix="prepare.", dir=directory.parent) as made:
                _prepare(kernel, Path(made), Path(made) / "ready")
                (Path(made) / "ready").rename(directory)
    return directory


def _prepare(kernel: Kernel, work: Path, ready: Path) -> None:
    tree, start = work / "tree", work / "start"
    subprocess.run(["dpkg-deb", "-x", kernel.package, tree], check=True)
    (modules,) = (path for top in ("lib", "usr/lib") for path in (tree / top).glob("modules/*"))
    ready.mkdir()
    for name in ("vmlinuz", "config"):
        next((tree / "boot").glob(f"{name}-*")).rename(ready / name)
    for packed in modules.rglob("*.ko.xz"):
        subprocess.run(["xz", "-d", packed], check=True)
    base = modules.parents[2]
    subprocess.run(["depmod", "-b", base, modules.name], check=True)
    make_image(modules.parent, ready / "modules")
    for name in ("bin", "proc", "sys", "dev", "lib/m", "new", "lower", "upper", "product"):
        (start / name).mkdir(parents=True)
    for place, module in enumerate(_needed(base, modules.name)):
        shutil.copy(module, start / "lib/m" / f"{place:02}-{module.name}")
    _copy_busybox(kernel.architecture, start / "bin/busybox")
    shutil.copy(HERE / "init.sh", start / "init")
    (start / "init").chmod(0o755)
    with (ready / "initrd").open("wb") as out:
        archive(start, ".", out)


def _copy_busybox(architecture: Architecture, to: Path) -> None:
    """This machine's, or that of the machines' root."""
    if not is_foreign(architecture):
        shutil.copy("/usr/bin/busybox", to)
        return
    root = find_root(architecture)
    assert root is not None, "tests/setup/kernels.sh makes it"
    with to.open("wb") as out:
        subprocess.run(["unsquashfs", "-cat", str(root), "usr/bin/busybox"], check=True, stdout=out)
    to.chmod(0o755)


def _needed(base: Path, version: str) -> list[Path]:
    """Files of the modules, each after those that it needs; one that is built in, or not there, has none."""
    files: dict[Path, None] = {}
    for name in _MOUNTING:
        argv = ["modprobe", "-d", str(base), "-S", version, "--show-depends", name]
        said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        files.update((Path(line.split()[1]), None) for line in said.splitlines() if line.startswith("insmod "))
    return list(files)
