"""Port 80 of whatever has the label is closed, from any container; the label is a container's own."""

from __future__ import annotations

from cni_calico.model.identity import OWN

FRONT_POLICY = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "GlobalNetworkPolicy",
    "metadata": {"name": "front"},
    "spec": {
        "selector": f"{OWN}role == 'front'",
        "types": ["Ingress"],
        "ingress": [{"action": "Deny", "protocol": "TCP", "destination": {"ports": [80]}}, {"action": "Allow"}],
    },
}
