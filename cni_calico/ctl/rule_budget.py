"""How many rules of the packet filter a policy may need in this cluster, as far as its records say.

Rule: what cannot be read leaves the default, since this is for warnings; a node's environment may set another one.
"""

from __future__ import annotations

from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Document
from cni_calico.errors import CalicoError, CorruptRecord
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.keys import FELIX_DEFAULT
from cni_calico.nodeagent.context.configurations import spec_of
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.policy.budget import DEFAULT


def read_rule_budget(session: Session) -> int:
    """PolicyRuleBudget of FelixConfiguration default."""
    try:
        found = session.store.get(FELIX_DEFAULT, session.deadline)
    except CalicoError:
        return DEFAULT
    return DEFAULT if found is None else budget_of(found.value)


def budget_of(document: Document) -> int:
    try:
        felix = decode_resource(FELIX_DEFAULT, document)
    except CorruptRecord:
        return DEFAULT
    return parse_felix({}, None, spec_of(felix)).settings.policy_rule_budget
