"""A container that starts with its host, before calico-node, and the packets that are sent to it from outside.

Rule: what arrives the container's own packet filter counts, which is there before its interface.

``python -m tests.e2e.systemd.container FILE`` sends, every millisecond, and makes the file when it begins.
"""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

ADDRESS, ALLOWED, FORBIDDEN = "10.65.0.77", 8000, 8001
POLICY = f"""
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata:
  name: web
spec:
  selector: all()
  types: [Ingress]
  ingress:
    - action: Allow
      protocol: UDP
      destination:
        ports: [{ALLOWED}]
"""
# as a runtime does it that starts containers by itself, and waits for nobody; the interface is there at once
CONTAINER = f"""#!/bin/sh
set -e
ip netns add c1
ip netns exec c1 nft -f - <<'RULES'
table ip seen {{
  chain in {{
    type filter hook prerouting priority -300
    udp dport {ALLOWED} counter
    udp dport {FORBIDDEN} counter
  }}
}}
RULES
export CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/c1 CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin
export CNI_ARGS="IgnoreUnknown=1;IP={ADDRESS}"
sysctl -q net.ipv4.ip_forward=1
python3 -c 'import json; c = json.load(open("/etc/cni/net.d/10-calico.conflist"))
print(json.dumps({{**c["plugins"][0], "name": c["name"], "cniVersion": "1.0.0", "policy_setup_timeout_seconds": 0}}))' |
  CNI_COMMAND=ADD /opt/cni/bin/calico
"""
UNIT = """[Unit]
DefaultDependencies=no
After=local-fs.target calico-boot-table.service
Before=network-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /srv/container
[Install]
WantedBy=multi-user.target
"""


def send(sender: socket.socket, ending: threading.Event) -> None:
    """To both ports, every millisecond, also while the host is down."""
    while not ending.wait(0.001):
        for port in (FORBIDDEN, ALLOWED):
            try:
                sender.sendto(b"", (ADDRESS, port))
            except OSError:
                pass  # there is no way there while the host is down


if __name__ == "__main__":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        Path(sys.argv[1]).touch()
        send(opened, threading.Event())
