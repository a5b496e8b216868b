"""A lab by hand: ``python -m tests.lab [--dual] [--nodes N] CNI`` (bridge, bundle, ...); it lasts until Ctrl-C.

Then, in another terminal, for the directory it prints: ``nsenter --net=/var/run/netns/NAME-cp kubectl ...``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.conftest import ROOT
from tests.lab import lab as labs
from tests.lab.host import BIN
from tests.lab.images import make_busybox, make_product

INSTALL = {
    "bridge": labs.install_bridge,
    "bundle": labs.install_bundle,
    "manifest": labs.install_manifest,
    "manifest-etcd": labs.install_manifest_for_etcd,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Start a lab and wait for Ctrl-C.")
    parser.add_argument("cni", choices=INSTALL)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--dual", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory(prefix="cct-lab-images-") as directory:
        images = [make_busybox(Path(directory))]
        if options.cni.startswith("manifest"):
            images.append(make_product(Path(directory)))
        bundle = ROOT / "dist" / "bin"
        with labs.running_lab(nodes=options.nodes, dual=options.dual, images=images, bundle=bundle) as lab:
            INSTALL[options.cni](lab)
            kubectl = f"{BIN}/kubectl --kubeconfig={lab.plane.admin}"
            print(f"nsenter --net=/var/run/netns/{lab.plane.netns} {kubectl} get pods -A")
            print(f"nsenter -t {lab.nodes[0].init_pid} -a ip route", flush=True)
            signal.pause()


if __name__ == "__main__":
    main()
