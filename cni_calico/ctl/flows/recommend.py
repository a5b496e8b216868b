"""``calicoctl policy recommend``: policies for a namespace, of what its recorded flows have used.

Rule: what is written is checked first by the compiled judge: every recorded connection that is allowed must stay so,
and what would be opened besides is said. The exit status is 0 if that holds, 1 if not, 2 for trouble.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.ctl.flows.replay import read_flows, require_one_place
from cni_calico.ctl.flows.show import describe_incomplete, describe_losses
from cni_calico.ctl.input.manifests import DEFAULT_NAMESPACE
from cni_calico.ctl.opening import open_session
from cni_calico.ctl.output.escaping import shown
from cni_calico.ctl.output.files import write_file
from cni_calico.ctl.output.texts import render_yaml
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.policy.changed_rows import changed_rows
from cni_calico.ctl.policy.diff import DIFFERS, TROUBLE
from cni_calico.ctl.policy.end_names import EndNames
from cni_calico.ctl.policy.expectations import KIND, VERSION
from cni_calico.ctl.policy.proposed import ProposedChange, propose, read_proposed
from cni_calico.ctl.policy.recommended import RecommendedPolicy, Recommender
from cni_calico.ctl.policy.replayed import Replay, describe_judged
from cni_calico.ctl.policy.told_labels import told_labels_for
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import InvalidConfig
from cni_calico.policy.judge.worlds import WorldPair

_MOST_LINES = 50


def recommend(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises InvalidConfig, and CommandFailed if what is recommended does not keep what is allowed."""
    require_one_place(arguments)
    if arguments.endpoints and not arguments.directory:
        raise InvalidConfig("cannot recommend: --endpoints is for --dir; without it the datastore has the endpoints")
    if arguments.directory:
        arguments.overlay = [arguments.directory]  # they stay as they are
        now = read_proposed(None, arguments)
    else:
        with open_session(arguments, environ) as session:
            now = read_proposed(session, arguments)
    namespace = arguments.namespace or DEFAULT_NAMESPACE
    learner = Recommender(now.records, now.after, namespace, include_denied=arguments.include_denied)
    flows = list[dict[str, Any]]()
    trouble = list(now.uncertain)
    for document in read_flows(arguments, environ):
        if "end" in document:
            trouble += describe_incomplete(document)
            trouble += describe_losses(document.get("lost", ()))
        elif "verdict" in document:
            learner.add(document)
            flows.append(document)
        elif "lost" in document:
            learner.left_out["in no line: too many different ones, or lost"] += int(document["lost"])
    policies = list(learner.policies(arguments.kind))
    if not policies:
        trouble.append(f"there is no flow of a workload in namespace {namespace} that could be learnt from")
    checked = CheckedRecommendation(now, policies, flows, arguments)
    if arguments.expectations:
        _write_expectations(arguments.expectations, learner)
    text = _render(policies, checked, learner, trouble, arguments)
    status = TROUBLE if trouble else DIFFERS if checked.denied else 0
    if not status:
        return text
    raise CommandFailed("", output=text, status=status)


def _write_expectations(path: str, learner: Recommender) -> None:
    document = {"apiVersion": VERSION, "kind": KIND, "expectations": learner.expectations()}
    write_file(path, render_yaml(document))


class CheckedRecommendation:
    """``denied``: recorded connections that would not be allowed any more; ``opened``: what would be allowed that is
    not now; ``kept``: connections that stay allowed; ``uncertain``: that cannot be judged.
    """

    def __init__(
        self,
        now: ProposedChange,
        policies: list[RecommendedPolicy],
        flows: list[dict[str, Any]],
        arguments: Namespace,
    ) -> None:
        change = propose(now, [one.enforced for one in policies], arguments)
        replay = Replay(change.records, change.before, change.after, change.hosts, told_labels_for(change))
        for flow in flows:
            replay.add(flow)
        replay.finish(change)
        self.kept, self.uncertain = replay.same, dict(replay.uncertain)
        rows = [row for row in replay.changed.values() if row.after.denied]
        self.denied = [
            f"{row.source} -> {row.destination} {row.traffic} ({row.connections} connections) would be "
            f"{describe_judged(row.after)}"
            for row in rows
        ]
        names = EndNames(change.records)
        self.opened = [
            f"{names.describe(row.sources).shown} -> {names.describe(row.destinations).shown} {row.where} {row.traffic}"
            for row in changed_rows(WorldPair(change.before, change.after))
            if not row.denies and row.after is not None
        ]


def _render(
    policies: list[RecommendedPolicy],
    checked: CheckedRecommendation,
    learner: Recommender,
    trouble: list[str],
    arguments: Namespace,
) -> str:
    of_now = [f"{learner.of_now} connections do not tell the labels of an end"] if learner.of_now else []
    left_out = {f"{count} connections: {why}" for why, count in learner.left_out.items()}
    uncertain = {f"{count} connections: {why}" for why, count in checked.uncertain.items()}
    if arguments.output != TABLE:
        document = {
            "policies": [one.whole for one in policies],
            "keptAllowed": checked.kept,
            "wouldBeDenied": checked.denied,
            "opens": checked.opened,
            "byLabelsOfNow": learner.of_now,
            "leftOut": dict(learner.left_out),
            "notOpened": learner.closed,
            "uncertain": checked.uncertain,
            "trouble": trouble,
        }
        return render_value(document, arguments.output)
    note = arguments.note
    note(f"{checked.kept} recorded connections stay as they are")
    for what, lines in (
        ("would be denied, although recorded as allowed", checked.denied),
        ("would be opened", checked.opened),
        ("learnt by labels of now", of_now),
        ("not opened", learner.closed),
        ("not learnt", sorted(left_out)),
        ("uncertain", sorted(uncertain)),
        ("trouble", trouble),
    ):
        for line in lines[:_MOST_LINES]:
            note(shown(f"{what}: {line}"))
        if len(lines) > _MOST_LINES:
            note(f"{what}: and {len(lines) - _MOST_LINES} more; -o json has all of them")
    return "---\n".join("".join(_yaml(one)) for one in policies)


def _yaml(policy: RecommendedPolicy) -> Iterator[str]:
    """With what is known of each rule before it."""
    yield render_yaml(policy.document)
    for direction, rules in policy.rules.items():
        yield f"  {direction}:{'' if rules else ' []'}\n"
        for rule, known in rules:
            yield f"  # {known if known.isprintable() else repr(known)}\n"
            yield "".join(f"  {line}\n" for line in render_yaml([rule]).splitlines())
