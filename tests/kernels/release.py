"""A release on a bare host of its processor: a machine with Debian's kernel for it, and nothing but the tarball.

Rule: what runs is what is published; of these sources there is only the list of commands, network.sh.

By hand: ``python -m tests.kernels.release DIR``, with ``--arch amd64`` for the other processor.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kernels.images import ARCHITECTURES, DEFAULT_SERIES, find_kernel, find_root
from tests.kernels.machine import HERE, Outcome, run

LIMIT_S = 1500  # of this host, which others may keep busy


def find_tarball(release: Path, architecture: str) -> Path | None:
    return next(release.glob(f"cni-calico-*-linux-{architecture}.tar.xz"), None)


def run_release(tarball: Path, architecture: str, results: Path) -> Outcome:
    """Installs it in a machine and connects two pods; the outcome's output is what the commands printed.

    ``architecture``: Debian's name of the processor.
    """
    kernel = find_kernel(DEFAULT_SERIES, ARCHITECTURES[architecture])
    assert kernel is not None, "tests/setup/kernels.sh fetches it"
    commands = (HERE / "network.sh").read_text()
    with tempfile.TemporaryDirectory(prefix="release-") as made:
        subprocess.run(["tar", "-C", made, "-xf", tarball, "--strip-components=1"], check=True)
        return run(kernel, commands, results, limit_s=LIMIT_S, memory_mib=2048, product=Path(made))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.release")
    parser.add_argument("release", type=Path, metavar="DIR", help="what build/release.sh made")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="arm64", help="Debian's name of the processor")
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "machine-results")
    given = parser.parse_args()
    tarball = find_tarball(given.release, given.arch)
    if tarball is None:
        sys.stderr.write(f"no tarball for {given.arch} in {given.release}: build/release.sh --arch {given.arch}\n")
        return 2
    if find_kernel(DEFAULT_SERIES, ARCHITECTURES[given.arch]) is None or find_root(ARCHITECTURES[given.arch]) is None:
        sys.stderr.write(
            f"no machine for {given.arch}: KERNELS_ARCH={given.arch} tests/setup/kernels.sh {DEFAULT_SERIES}\n"
        )
        return 2
    done = run_release(tarball, given.arch, given.results)
    sys.stdout.write(done.output)
    sys.stderr.write(f"{done.seconds:.0f} s, results in {done.results}\n")
    return 99 if done.status is None else done.status


if __name__ == "__main__":
    sys.exit(main())
