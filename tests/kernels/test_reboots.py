"""A stock kernel starts again and again, with systemd, the boot table, and a container that waits for nobody.

Rule: from before systemd's first moment a packet every millisecond is sent to the container from outside, to a port
that its policy allows and to one that it does not; of the second kind none arrives, whether the machine was stopped in
order or its power went.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import SUMMARY
from tests.e2e.systemd.container import ALLOWED, CONTAINER, FORBIDDEN, POLICY, UNIT
from tests.kernels.images import DEFAULT_SERIES, SERIES, find_kernel
from tests.kernels.lanes import LIMIT_S
from tests.kernels.machine import run

pytestmark = [
    *(pytest.mark.netns, pytest.mark.kernels, pytest.mark.bundle, pytest.mark.never_excused),
    *(pytest.mark.slow, pytest.mark.takes(250), pytest.mark.timeout(2 * LIMIT_S)),
]
HERE = Path(__file__).parent
# half of them without an order to stop; a machine's clock counts instructions, so one start is much like another
REBOOTS, ON_OTHERS = int(os.environ.get("KERNELS_REBOOTS") or 8), 2
DISK_MIB = 512
JUDGE = f"""[Unit]
After=container.service calico-node.service
[Service]
Type=oneshot
TimeoutStartSec=infinity
StandardOutput=journal+console
StandardError=inherit
ExecStart=/bin/bash /srv/judge.sh {{reboots}} {ALLOWED} {FORBIDDEN}
"""
UNITS = "etc/systemd/system"


def make_disk(work: Path, reboots: int) -> Path:
    """What is new in the machine's root. The container's unit is stopped before calico-node's, and counts."""
    ends = "Conflicts=shutdown.target\nBefore=shutdown.target\n[Service]\n"
    stop = f"ExecStop=/bin/bash /srv/judge.sh down {FORBIDDEN}\n"
    files = {
        "srv/container": CONTAINER,
        "srv/policy.yaml": POLICY,
        "srv/judge.sh": (HERE / "judge.sh").read_text(),
        f"{UNITS}/container.service": UNIT.replace("[Service]\n", ends).replace("[Install]\n", f"{stop}[Install]\n"),
        f"{UNITS}/judge.service": JUDGE.format(reboots=reboots),
    }
    top = work / "files"
    for name, text in files.items():
        path = top / "upper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    wants = top / "upper" / UNITS / "multi-user.target.wants"
    wants.mkdir()
    (wants / "judge.service").symlink_to(f"/{UNITS}/judge.service")
    disk = work / "disk"
    subprocess.run(["mkfs.ext4", "-q", "-d", top, disk, f"{DISK_MIB}M"], check=True)
    return disk


@pytest.mark.parametrize("series", SERIES)
def test_nothing_forbidden_arrives(
    series: str, bundle: Path, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    kernel = find_kernel(series)
    assert kernel is not None, f"tests/setup/kernels.sh {series} fetches it"
    reboots = REBOOTS if series == DEFAULT_SERIES else ON_OTHERS
    results = tmp_path / "results"
    disk = make_disk(tmp_path, reboots)
    init = (HERE / "reboots.sh").read_text()
    done = run(kernel, init, results, limit_s=2 * LIMIT_S - 200, disks=[disk], reboots=True)
    assert done.status == 0, done.output[-20000:]
    *boots, without = (line.split() for line in (results / "boots").read_text().splitlines())
    assert len(boots) == reboots
    for number, (allowed, forbidden, agent) in enumerate(boots, 1):
        journal = (results / f"journal.{number}").read_text()
        assert (forbidden, agent) == ("0", "active") and int(allowed) > 100, journal
        assert "closed by nftables until calico-node has decided" in journal
        assert "the boot table is gone: what may pass is decided" in journal
    assert (results / "down").read_text().splitlines() == ["down 0"] * (reboots // 2)
    assert int(without[1]) > 0, "without the boot table it arrives, or this test could not fail"
    record_property(SUMMARY, f"Linux {kernel.version}: {reboots} starts, 0 forbidden packets, in {done.costs}")


@pytest.mark.parametrize("series", SERIES[-1:])
def test_nothing_goes_plain_while_a_machine_starts(
    series: str, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """The power goes while two nodes must encrypt; afterwards pods are asked for before the first one's agent runs."""
    kernel = find_kernel(series)
    assert kernel is not None, f"tests/setup/kernels.sh {series} fetches it"
    results, disk = tmp_path / "results", tmp_path / "disk"
    disk.touch()
    subprocess.run(["mkfs.ext4", "-q", disk, f"{DISK_MIB}M"], check=True)
    init = (HERE / "encrypted_reboot.sh").read_text()
    done = run(kernel, init, results, limit_s=2 * LIMIT_S - 200, disks=[disk], reboots=True)
    assert done.status == 0, done.output[-20000:]
    said = (results / "said").read_text()
    assert not said.startswith("0 ADDs"), said
    record_property(SUMMARY, f"mandatory encryption, Linux {kernel.version}, a machine starts again: {said}")
