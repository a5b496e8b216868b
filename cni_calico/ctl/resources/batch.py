"""Processes many resources one after the other, and reports about all of them at the end.

Rule: an error of one resource does not stop the others (except in ``replace``, as in upstream); the text says how many
were processed and lists every error, in upstream's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import CalicoError, DeadlineExceeded
from cni_calico.model.keys import ResourceKey


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done, its past participle, and how upstream begins the list of errors."""

    now: str
    done: str
    hit: str = "hit error"
    goes_on: bool = True


CREATE = Verb("create", "created")
REPLACE = Verb("replace", "replaced", goes_on=False)
APPLY = Verb("apply", "applied", hit="hit error(s)")
VALIDATE = Verb("validate", "validated", hit="hit error(s)")
DELETE = Verb("delete", "deleted")


def run_batch(
    verb: Verb,
    keys: Sequence[ResourceKey],
    act: Callable[[int], None],
    *,
    skip: tuple[type[CalicoError], ...] = (),
) -> str:
    """Call ``act(i)`` for every resource; errors of the types in ``skip`` count as nothing to do.

    Raises CommandFailed if at least one failed. When time is up, the rest is not tried.
    """
    if not keys:
        return "No resources specified\n"
    handled = skipped = 0
    errors: list[CalicoError] = []
    for i in range(len(keys)):
        try:
            act(i)
            handled += 1
        except skip:
            skipped += 1
        except CalicoError as e:
            errors.append(e)
            if not verb.goes_on or isinstance(e, DeadlineExceeded):
                break
    kinds = _kinds(keys)
    quoted = f" '{kinds[0]}'" if len(kinds) == 1 else ""
    text = f"Successfully {verb.done} {handled}{quoted} resource(s)\n" if handled else ""
    text += f"Skipped {skipped}{quoted} resource(s)\n" if skipped else ""
    if errors:
        raise _failure(verb, keys, handled, errors, text)
    return text


def _kinds(keys: Iterable[ResourceKey]) -> list[str]:
    return list(dict.fromkeys(key.kind for key in keys))


def _failure(
    verb: Verb, keys: Sequence[ResourceKey], handled: int, errors: Sequence[CalicoError], text: str
) -> CommandFailed:
    kinds = _kinds(keys)
    quoted = f" '{kinds[0]}'" if len(kinds) == 1 else ""
    listed = " ".join(str(error) for error in errors)
    if verb is DELETE:
        lines = [f"Failed to {verb.now}{quoted} resource: {error}" for error in errors]
        failed = CommandFailed("\n".join(lines), output=text)
    elif handled:
        output = f"Partial success: {verb.done} the first {handled} out of {len(keys)}{quoted} resources:\n"
        failed = CommandFailed(f"{verb.hit}: [{listed}]", output=output)
    elif len(keys) == 1:
        failed = CommandFailed(f"failed to {verb.now} '{keys[0].kind}' resource: [{listed}]")
    else:
        failed = CommandFailed(f"failed to {verb.now} any{quoted} resources: [{listed}]")
    failed.details = "; ".join(dict.fromkeys(error.details for error in errors if error.details))
    return failed
