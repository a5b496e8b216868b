"""PURE: the pods of Istio's mesh in ambient mode, as the members of a set.

Rule: a pod's own label decides, else its namespace's; "none" takes a pod out.
"""

from __future__ import annotations

from cni_calico.model.selector_forms import ORCHESTRATOR, conjunction, equals, negation, normalized
from cni_calico.policy.sources import NAMESPACE_PREFIX, SelectorSource

MESH = "dscp-mesh"  # marking.py's: no policy shares it
_LABEL, _IN, _OUT = "istio.io/dataplane-mode", "ambient", "none"
_OF_NAMESPACE = conjunction(equals(NAMESPACE_PREFIX + _LABEL, _IN), negation(equals(_LABEL, _OUT)))
_IN_MESH = ("or", (equals(_LABEL, _IN), _OF_NAMESPACE))
MESH_SOURCE = SelectorSource(MESH, normalized(conjunction(equals(ORCHESTRATOR, "k8s"), _IN_MESH)))
