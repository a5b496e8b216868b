"""PURE: what the error of an etcd call means: whether the call was applied, whether another member may succeed, and
which error to raise. Rule: a call counts as "not applied" only if it certainly has not reached the store; everything
unknown is LOST.
"""

from __future__ import annotations

from cni_calico.errors import (
    Compacted,
    DatastoreDenied,
    DatastoreError,
    DatastoreForbidden,
    DatastoreUnavailable,
    DatastoreUnsupported,
)

ELSEWHERE = "elsewhere"  # not applied; another member may succeed
LOGIN = "login"  # not applied; authenticate again
DENIED = "denied"
COMPACTED = "compacted"
FULL = "full"  # not applied, and no member will apply it
TOO_LARGE = "too large"
REJECTED = "rejected"  # not applied: the member does not accept such a request
NOT_ETCD = "not etcd"
LOST = "lost"  # perhaps applied

_NO_RIGHT = "permission denied"
WHICH_RIGHTS = "'calicoctl datastore etcd-roles' prints the rights that each program needs"

# (status, beginning of the text, meaning); the first match counts. Texts: etcd's api/v3rpc/rpctypes, gRPC core.
_MEANINGS = (
    ("UNAVAILABLE", "failed to connect to all addresses", ELSEWHERE),
    ("UNAVAILABLE", "DNS resolution failed", ELSEWHERE),
    ("UNAVAILABLE", "etcdserver: no leader", ELSEWHERE),
    ("UNAVAILABLE", "etcdserver: rpc not supported for learner", ELSEWHERE),
    ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", FULL),
    ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", ELSEWHERE),
    ("UNAUTHENTICATED", "", LOGIN),
    ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", LOGIN),
    ("INVALID_ARGUMENT", "etcdserver: user name is empty", LOGIN),  # authentication was enabled meanwhile
    ("INVALID_ARGUMENT", "etcdserver: authentication failed", DENIED),
    ("FAILED_PRECONDITION", "etcdserver: user name not found", DENIED),
    ("PERMISSION_DENIED", "", DENIED),
    ("OUT_OF_RANGE", "etcdserver: mvcc: required revision", COMPACTED),
    ("INVALID_ARGUMENT", "etcdserver: request is too large", TOO_LARGE),
    ("INVALID_ARGUMENT", "", REJECTED),
    ("FAILED_PRECONDITION", "", REJECTED),
    ("NOT_FOUND", "etcdserver: requested lease not found", REJECTED),
    ("UNIMPLEMENTED", "", NOT_ETCD),
)


def meaning_of(status: str, text: str) -> str:
    """The meaning of a gRPC status (its name) and text."""
    for known, beginning, meaning in _MEANINGS:
        if status == known and text.startswith(beginning):
            return meaning
    return LOST


def error_for(meaning: str, doing: str, why: str) -> DatastoreError:
    """The error to raise for a call that was not applied."""
    text = f"cannot {doing}: {why}"
    if meaning == DENIED and _NO_RIGHT in why:
        return DatastoreForbidden(f"{text}; {WHICH_RIGHTS}")
    if meaning in (DENIED, LOGIN):
        return DatastoreDenied(text)
    if meaning == COMPACTED:
        return Compacted(text)
    if meaning == REJECTED:
        return DatastoreError(text)
    if meaning == TOO_LARGE:
        return DatastoreError(text, details="raise etcd's --max-request-bytes, or use smaller address blocks")
    if meaning == FULL:
        return DatastoreUnavailable(text, details="compact and defragment etcd, then disarm its NOSPACE alarm")
    if meaning == NOT_ETCD:
        return DatastoreUnsupported(text, details="etcd_endpoints must name the client URLs of etcd 3.4 or later")
    return DatastoreUnavailable(text)


def short_reason(status: str, text: str) -> str:
    """A gRPC text without its nesting: the last error, on one line."""
    if status == "DEADLINE_EXCEEDED":
        return "no answer in time"
    text = text.rpartition("last error: ")[2].removeprefix("UNKNOWN: ").removeprefix("UNAVAILABLE: ")
    text = text.replace("Failed to connect to remote host: ", "")
    return " ".join(text.split())[:200] or status
