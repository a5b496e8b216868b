"""PURE: the profile that allows everything, which every cluster has and no datastore stores. Rule: it is shown by
``calicoctl get profile`` and never written. Source: upstream's client library, which adds it too.
"""

from __future__ import annotations

from typing import Any

from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import ResourceKey

DEFAULT_ALLOW = ResourceKey("Profile", "projectcalico-default-allow")


def default_allow() -> dict[str, Any]:
    everything: dict[str, Any] = {"action": "Allow", "source": {}, "destination": {}}
    return {
        "kind": "Profile",
        "apiVersion": API_VERSION,
        "metadata": {"name": DEFAULT_ALLOW.name, "creationTimestamp": None},
        "spec": {"ingress": [everything], "egress": [everything]},
    }
