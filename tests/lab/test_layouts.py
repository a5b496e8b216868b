"""Nodes as a distribution makes them are what the distribution's page says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.host import run
from tests.lab.lab import running_lab
from tests.lab.layouts import TALOS

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(600)]


def test_a_layout_is_what_its_name_says(busybox_image: Path) -> None:
    """Of Talos: nothing runs from the directory of configuration, a boot empties it, and modules cannot be loaded."""
    with running_lab(nodes=1, images=[busybox_image], layout=TALOS) as lab:
        [node] = lab.nodes
        node.run("sh", "-c", f"echo 'exit 0' >{TALOS.conf_dir}/x && chmod 755 {TALOS.conf_dir}/x")
        assert "denied" in run(*node.inside(f"{TALOS.conf_dir}/x"), check=False).stderr
        pid = (node.directory / "containerd.pid").read_text().strip()
        bounding = int(node.run("sh", "-c", f"sed -n 's/^CapBnd:\t//p' /proc/{pid}/status"), 16)
        assert not bounding & 1 << 16  # CAP_SYS_MODULE
        node.power_off()
        node.power_on()
        assert node.run("ls", "-A", TALOS.conf_dir) == ""
