"""How many rules of the packet filter a policy may need in this cluster, as far as its records say.

Rule: what cannot be read leaves the default, since this is for warnings; a node's environment may set another one.
"""

from __future__ import annotations

from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Document
from cni_calico.errors import CalicoError
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.policy.budget import DEFAULT


def read_rule_budget(session: Session) -> int:
    """PolicyRuleBudget of FelixConfiguration default."""
    try:
        found = session.store.get(ResourceKey("FelixConfiguration", "default"), session.deadline)
    except CalicoError:
        return DEFAULT
    return DEFAULT if found is None else budget_of(found.value)


def budget_of(document: Document) -> int:
    spec = document.get("spec")
    return parse_felix({}, None, spec if isinstance(spec, dict) else None).settings.policy_rule_budget
