"""Many resources, one after the other, and what is said about it in the end.

Rule: the first failure ends the batch; the text says how far it came, in upstream's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import CalicoError
from cni_calico.model.keys import ResourceKey


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done, and how it is called once it is done."""

    now: str
    done: str


CREATE = Verb("create", "created")
REPLACE = Verb("replace", "replaced")
APPLY = Verb("apply", "applied")
DELETE = Verb("delete", "deleted")


def run_batch(
    verb: Verb,
    keys: Sequence[ResourceKey],
    act: Callable[[int], None],
    *,
    skip: tuple[type[CalicoError], ...] = (),
) -> str:
    """``act(i)`` for every resource; errors of the types in ``skip`` count as nothing to do. Raises CommandFailed."""
    if not keys:
        return "No resources specified\n"
    handled = skipped = 0
    for i in range(len(keys)):
        try:
            act(i)
            handled += 1
        except skip:
            skipped += 1
        except CalicoError as e:
            raise _failure(verb, keys, handled, e) from e
    kinds = _kinds(keys)
    quoted = f" '{kinds[0]}'" if len(kinds) == 1 else ""
    text = f"Successfully {verb.done} {handled}{quoted} resource(s)\n" if handled else ""
    return text + (f"Skipped {skipped}{quoted} resource(s)\n" if skipped else "")


def _kinds(keys: Iterable[ResourceKey]) -> list[str]:
    return list(dict.fromkeys(key.kind for key in keys))


def _failure(verb: Verb, keys: Sequence[ResourceKey], handled: int, error: CalicoError) -> CommandFailed:
    kinds = _kinds(keys)
    quoted = f" '{kinds[0]}'" if len(kinds) == 1 else ""
    if handled:
        output = f"Partial success: {verb.done} the first {handled} out of {len(keys)}{quoted} resources:\n"
        failed = CommandFailed(f"Hit error: {error}", output=output)
    elif len(keys) == 1:
        failed = CommandFailed(f"Failed to {verb.now} '{keys[0].kind}' resource: [{error}]")
    else:
        failed = CommandFailed(f"Failed to {verb.now} any{quoted} resources: [{error}]")
    failed.details = error.details
    return failed
