"""cnitool on the frozen executables, and what upstream's plugin printed to compare its results with.

Rule: cnitool's cache of results is a directory of the test's own, mounted where cnitool expects it.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass, field
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from tests.conftest import LAB_CACHE
from tests.e2e.host import Node
from tests.netns.namespaces import Namespace

VECTOR = Path(__file__).parent.parent / "golden" / "vectors" / "k8s-pod-netstate.txt"


@dataclass
class Cnitool:
    """cnitool in the host's namespace, with one network."""

    node: Node
    version: str = "1.0.0"
    changes: dict[str, Any] = field(default_factory=dict)
    chained: list[dict[str, Any]] = field(default_factory=list)
    runtime_config: dict[str, Any] = field(default_factory=dict)
    conflist: str = ""  # this text instead
    network: str = "calnet"

    def write(self) -> Path:
        directory = self.node.root / "net.d"
        directory.mkdir(exist_ok=True)
        if self.conflist:
            (directory / "10-calico.conflist").write_text(self.conflist)
            return directory
        conf = self.node.conf(**self.changes)
        name, _ = conf.pop("name"), conf.pop("cniVersion")
        document = {"cniVersion": self.version, "name": name, "plugins": [conf, *self.chained]}
        (directory / "10-test.conflist").write_text(json.dumps(document))
        return directory

    def run(self, command: str, pod: Namespace) -> subprocess.CompletedProcess[str]:
        assert self.node.bin_dir is not None
        environ = {
            name: value for name, value in self.node.env("", "", "", "", "").items() if not name.startswith("CNI_")
        }
        environ |= {
            "NETCONFPATH": str(self.write()),
            "CNI_PATH": f"{self.node.bin_dir}:{LAB_CACHE}/cni/bin",
            "CAP_ARGS": json.dumps(self.runtime_config),
        }
        argv = [*self.in_host, str(LAB_CACHE / "bin/cnitool"), command, self.network, pod.path]
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)

    @property
    def in_host(self) -> list[str]:
        """Words before a command line, which then sees this cache of results."""
        cache = self.node.root / "cache"
        cache.mkdir(exist_ok=True)
        script = 'mkdir -p /var/lib/cni && mount --bind "$0" /var/lib/cni && exec nsenter --net="$@"'
        return ["unshare", "-m", "sh", "-c", script, str(cache), self.node.host.path]

    def ok(self, command: str, pod: Namespace) -> Any:
        done = self.run(command, pod)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None


def upstream_result(pod: str) -> Any:
    """What upstream's plugin printed for an ADD of that pod."""
    text = VECTOR.read_text()
    part = text[text.index(f"# pod vec/{pod} on ") :]
    found = re.search(r"^## calico ADD: stdout.*?\n(.*?)^## ", part, re.MULTILINE | re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def shape(value: Any) -> Any:
    """The same with each text replaced by its kind, so that two machines' results compare."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key != "cniVersion"}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if not isinstance(value, str):
        return value
    for pattern, kind in ((r"cali[0-9a-f-]+|calicnitool.*", "host veth"), (r"([0-9a-f]{2}:){5}[0-9a-f]{2}", "mac")):
        if re.fullmatch(pattern, value):
            return kind
    if value.startswith("/var/run/netns/"):
        return "sandbox"
    if "/" in value:
        network = ip_interface(value).network
        return f"v{network.version}/{network.prefixlen}"
    return value


def expected_shape(pod: str, version: str) -> Any:
    """Upstream's result (0.3.1) as the later versions of the specification have it."""
    expected = shape(upstream_result(pod))
    if version in ("1.0.0", "1.1.0"):
        for ip in expected["ips"]:
            del ip["version"]
        expected["interfaces"][1]["mtu"] = 1450
        del expected["dns"]  # cnitool prints these versions without what is empty
    return expected
