"""PURE: names of our objects, comments and log prefixes, from texts that anyone may have written.

Rule: whatever a record contains, nft reads each name as one word, two different things never share a name, and a
comment or log prefix cannot end its quotes. A name's stem is for people; if the stem had to be changed or cut, "_"
(which no unchanged stem contains) and a digest follow.
"""

from __future__ import annotations

import re
from _blake2 import blake2b  # hashlib would load libcrypto
from functools import lru_cache

from cni_calico.policy.wanted import PolicyId

_KINDS = {
    "NetworkPolicy": "np",
    "GlobalNetworkPolicy": "gnp",
    "KubernetesNetworkPolicy": "knp",
    "KubernetesClusterNetworkPolicy": "kcnp",
    "Profile": "pro",
}
_UNSAFE = re.compile(r"[^A-Za-z0-9.\-]+")
_UNQUOTABLE = re.compile(r"[^ !#%-\[\]-~]")  # not printable ASCII, the quote, the backslash, and $: nft expands it
_STEM = 80
_DIGEST_BYTES = 10
_LOG_PREFIX_BYTES = 126  # the kernel's 128, less its end and one for safety


def digest(*parts: object) -> str:
    joined = "\0".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return blake2b(joined, digest_size=_DIGEST_BYTES).hexdigest()


def kind_of(policy: PolicyId) -> str:
    """The kind, as log prefixes and chains' names spell it."""
    return _KINDS[policy.kind]


def _stem(text: str) -> str:
    safe = _UNSAFE.sub("-", text)
    if safe == text and len(text) <= _STEM:
        return text
    return f"{safe[:_STEM]}_{digest(text)}"


@lru_cache(maxsize=16384)
def policy_chain(policy: PolicyId, ingress: bool, *, drops: bool = False) -> str:
    """``pi-`` and ``po-`` for ingress and egress, as upstream's chains are called; ``pd-`` for egress that ``drops``
    even where Deny means to reject.
    """
    namespace = f"{_stem(policy.namespace)}/" if policy.namespace else ""
    beginning = "pi" if ingress else "pd" if drops else "po"
    return f"{beginning}-{kind_of(policy)}/{namespace}{_stem(policy.name)}"


def policy_chains(policy: PolicyId) -> tuple[str, ...]:
    """The names of all chains that a policy may have."""
    return policy_chain(policy, True), policy_chain(policy, False), policy_chain(policy, False, drops=True)


def class_chain(class_id: str, ingress: bool) -> str:
    """``to-`` and ``from-`` the workloads of a class."""
    return f"{'to' if ingress else 'from'}-{_stem(class_id)}"


def interface_chain(beginning: str, interface: str) -> str:
    return f"{beginning}-{_stem(interface)}"


def quoted(text: str) -> str:
    """A text that can be quoted in nft's listing and in a line of the kernel's log."""
    return _UNQUOTABLE.sub("?", text)


def log_prefix(pattern: str, tier: str, policy: PolicyId) -> str:
    """``%t %k %n %p`` are tier, kind, name, namespace/name; ends with ": "."""
    full = f"{policy.namespace}/{policy.name}" if policy.namespace else policy.name
    words = {"%t": tier, "%k": kind_of(policy), "%n": policy.name, "%p": full}
    text = re.sub("%[tknp]", lambda found: words[found.group()], pattern)
    return quoted(text)[: _LOG_PREFIX_BYTES - 2] + ": "
