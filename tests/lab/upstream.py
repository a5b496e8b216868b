"""Images under upstream's names, and what its agent would have on a node: for takeovers of clusters from its manifest.

Rule: upstream's own programs are not here. What stands for its agent runs ours until a node has upstream's rules on its
disk; from then on it keeps these in force, and accepts pods that they do not know, as upstream's rules for pods without
policies do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.lab.host import PLUGINS, run
from tests.lab.node import Node
from tests.upstream_manifest import CNI, CONTROLLERS, NODE
from tests.upstream_rules import iptables_scripts

_ON_DISK = "/var/lib/calico/upstream"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/cni/bin"
_CONTROLLERS = ["--user", "999", "--entrypoint", "/usr/bin/wrapper", "/usr/bin/kube-controllers"]
_AGENT = f"""#!/bin/bash
set -e
cd {_ON_DISK} 2>/dev/null || exec /opt/cni/bin/calico-node run
ipset restore -exist -file sets
iptables-legacy-restore rules
while :; do
  for link in $(ip -o link | grep -o 'cali[^@: ]*@' | tr -d @); do
    for way in 'from i pro' 'to o pri'; do
      read -r name option profile <<<"$way"
      grep -q -- "-$option $link " rules && continue
      rule=("cali-$name-wl-dispatch" "-$option" "$link" -g "cali-$profile-kns.default")
      iptables-legacy -C "${{rule[@]}}" 2>/dev/null || iptables-legacy -I "${{rule[@]}}"
    done
  done
  touch /tmp/ready
  sleep 1
done
"""
_PROBES = f"""#!/bin/sh
[ -d {_ON_DISK} ] || exec /opt/cni/bin/calico-node "$@"
case $* in *-ready*) [ -e /tmp/ready ] ;; esac
"""


def make_images(directory: Path, bundle: Path) -> list[Path]:
    """calico/node, calico/cni and calico/kube-controllers."""
    product, scripts = directory / "product", directory / "scripts"
    programs = product / "opt" / "cni" / "bin"
    programs.mkdir(parents=True)
    run(ROOT / "build" / "install-bundle.sh", "--plain", bundle, programs)
    run(ROOT / "build" / "image" / "tree.sh", product)
    for file in ("build/install-bundle.sh", "install/install-cni.sh", "conflist/10-calico.conflist.template"):
        run("cp", ROOT / file, programs)
    for plugin in PLUGINS.iterdir():
        run("cp", plugin, programs)
    for path, text in (("usr/sbin/start_runit", _AGENT), ("usr/bin/calico-node", _PROBES)):
        script = scripts / path
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)
    lower, architecture = ROOT / "build" / "image" / "lower.sh", run("dpkg", "--print-architecture").stdout.strip()
    run(lower, architecture)
    layers = ["--layer", run(lower, architecture, "--print").stdout.strip(), "--tree", str(product)]
    made = []
    for name, more in (
        (NODE, ["--tree", str(scripts), "--env", _PATH, "--command", "/usr/sbin/start_runit"]),
        (CNI, ["--env", _PATH, "--command", "/opt/cni/bin/install"]),
        (CONTROLLERS, ["--env", _PATH, *_CONTROLLERS]),
    ):
        out = directory / f"{name.rpartition('/')[2].partition(':')[0]}.tar"
        run(sys.executable, ROOT / "build" / "image" / "archive.py", out, "--name", name, *layers, *more)
        made.append(out)
    return made


def tables(node: Node) -> list[str]:
    """nftables' own."""
    return [line.removeprefix("table ") for line in node.run("nft", "list", "tables").splitlines()]


def forget_ours(node: Node) -> None:
    """Remove what our agent has left in nftables."""
    for table in tables(node):
        if "calico" in table:
            node.run("nft", "delete", "table", *table.split())


def left_of_upstream(node: Node) -> list[str]:
    """Lines of its rules, and names of its sets."""
    texts = [node.run("iptables-legacy-save"), node.run("ipset", "list", "-n")]
    found = [line for text in texts for line in text.splitlines() if "cali" in line]
    chains = node.run("nft", "list", "chains").splitlines()
    return found + [line for line in chains if "-cali-" in line]


def lay_down_rules(node: Node, case: str, replaced: Mapping[str, str], others: Sequence[str], pool: str) -> None:
    """For the stand-in's next start: a case of tests/golden/policy, as upstream programs it in iptables mode.

    ``others``: interfaces of pods that the case does not have; they have no policy.
    """
    sets, rules = iptables_scripts(case, replaced)
    sets += f"add cali40masq-ipam-pools {pool}\n"
    masquerade = (
        "-m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40masq-ipam-pools dst"
        " -j MASQUERADE --random-fully"
    )
    rules = _before(rules, "COMMIT\n*raw", f"-A cali-nat-outgoing {masquerade}\n")
    for way, option, profile in (("from", "i", "pro"), ("to", "o", "pri")):
        unknown = f'-A cali-{way}-wl-dispatch -m comment --comment "Unknown interface"'
        known = "".join(
            f"-A cali-{way}-wl-dispatch -{option} {link} -g cali-{profile}-kns.default\n" for link in others
        )
        rules = _before(rules, unknown, known)
    drop_to_host = '-A cali-wl-to-host -m comment --comment "Configured DefaultEndpointToHostAction" -j '
    rules = rules.replace(f"{drop_to_host}DROP", f"{drop_to_host}ACCEPT")  # as the manifest sets it
    directory = node.disk(_ON_DISK)
    directory.mkdir()
    (directory / "sets").write_text(sets)
    (directory / "rules").write_text(rules)


def _before(text: str, line: str, new: str) -> str:
    assert text.count(line) == 1
    return text.replace(line, new + line)
