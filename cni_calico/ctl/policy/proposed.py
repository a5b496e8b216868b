"""Two states of policy, before and after: what is stored and what files would make of it, or two directories of files.

Rule: everything is read and checked before anything is compared. What cannot be read counts as uncertain and is told as
such; it never counts as unchanged.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cni_calico.ctl.input.directories import SUFFIXES, find_files
from cni_calico.ctl.input.manifests import DEFAULT_NAMESPACE, read_files
from cni_calico.ctl.policy.at_hosts.facts import KnownHosts, read_host_facts
from cni_calico.ctl.policy.records import PolicyRecords, load, read_policy_file
from cni_calico.ctl.session import Session
from cni_calico.errors import CorruptRecord, InvalidConfig
from cni_calico.model.documents.codec import describe
from cni_calico.model.documents.tiers import TIERS
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.policies import CLUSTER_NETWORK_POLICY, NETWORK_POLICY
from cni_calico.model.resources import Metadata, Resource, WorkloadEndpoint
from cni_calico.policy.decode import decode_record
from cni_calico.policy.graph import Graph
from cni_calico.policy.kubernetes import DEFAULT_ALLOW, read_namespace, read_service_account
from cni_calico.policy.nodes import SLICE, GraphRecord
from cni_calico.policy.records import DEFAULT_TIER, POLICY_KINDS
from cni_calico.policy.wanted import Wanted

STAGED = ("StagedNetworkPolicy", "StagedGlobalNetworkPolicy", "StagedKubernetesNetworkPolicy")
_CHANGEABLE = (*POLICY_KINDS, "Tier", "Profile", "NetworkSet", "GlobalNetworkSet")
_ENDPOINTS = ("WorkloadEndpoint", "HostEndpoint", "Profile", "NetworkSet", "GlobalNetworkSet", SLICE)
_OF_KUBERNETES = (NETWORK_POLICY, CLUSTER_NETWORK_POLICY)
_PROFILES = {"Namespace": read_namespace, "ServiceAccount": read_service_account}
_ALLOW = ({"action": "Allow"},)
_POLICY_WORDS = "policies, tiers, profiles, network sets, Namespaces and ServiceAccounts"
_ENDPOINT_WORDS = "WorkloadEndpoints, HostEndpoints, profiles, network sets, Namespaces and ServiceAccounts"

FileRecords = dict[ResourceKey, GraphRecord]
MakesRecords = Callable[[Mapping[ResourceKey, GraphRecord]], Mapping[ResourceKey, GraphRecord]]


@dataclass(slots=True)
class ProposedChange:
    """``records``: everything, as of after the change. ``changed``: the keys that differ. ``uncertain``: what could not
    be read, in words. ``staged``: staged policies of the files, which enforce nothing. ``warnings``: what of the
    policies is not as their author may think. ``hosts``: what is known of hosts, if there are host endpoints.
    ``replaced``: what the change takes the place of; None: nothing was there.
    """

    records: PolicyRecords
    before: Wanted
    after: Wanted
    changed: tuple[ResourceKey, ...]
    uncertain: list[str] = field(default_factory=list)
    staged: tuple[ResourceKey, ...] = ()
    warnings: tuple[str, ...] = ()
    hosts: KnownHosts | None = None
    replaced: Mapping[ResourceKey, GraphRecord | None] = field(default_factory=dict)

    def with_workloads(self, made: Mapping[ResourceKey, WorkloadEndpoint]) -> tuple[Wanted, Wanted]:
        """Both states, as if there were these workloads too, which the records have from then on."""
        self.records.records.update(made)
        after = _graph_of(self.records)
        now = after.wanted()
        for key, record in self.replaced.items():
            after.put(key, record)
        after.flush()
        return after.wanted(), now


def _nothing(records: Mapping[ResourceKey, GraphRecord]) -> Mapping[ResourceKey, GraphRecord]:
    return {}


def read_proposed(session: Session | None, arguments: Namespace, made: MakesRecords = _nothing) -> ProposedChange:
    """``session``: None compares directories; then ``made`` gives records besides those of the files. Raises
    InvalidConfig for files that cannot be used.
    """
    uncertain: list[str] = []
    staged: dict[ResourceKey, str] = {}
    _require_files(arguments.overlay)
    new = _read_policies(arguments.overlay, arguments, staged)
    if session is None:
        old = _read_policies([arguments.directory] if arguments.directory else [], arguments, {})
        records = PolicyRecords()
        endpoints = _read_endpoints(arguments)
        endpoints.update(made(endpoints))
        if made is _nothing:
            _require_endpoints(endpoints)
        _add_missing(records.records, endpoints, old, new)
        records.records.update(old)
        removed = [key for key in old if key not in new]
    else:
        records = _read_stored(session, arguments, uncertain)
        removed = []
        if arguments.prune:
            removed = [key for key in records.records if key.kind in POLICY_KINDS and key not in new]
    removed += [_named(name, records, arguments.namespace) for name in arguments.without]
    _require_tiers(new, records, removed)
    facts = read_host_facts(session, records, uncertain)
    change = replace(compared(records, new, removed, uncertain, tuple(staged)), hosts=facts)
    for warning in change.warnings:
        arguments.warn(warning)
    return change


def _require_files(names: Iterable[str]) -> None:
    """A directory of nothing is a mistyped one: it would change nothing, or everything."""
    for name in names:
        if name != "-" and not find_files(name, recursive=True):
            raise InvalidConfig(f"cannot read {name}: no file in it has a name that ends with {', '.join(SUFFIXES)}")


def _require_endpoints(there: FileRecords) -> None:
    """For nobody no verdict ever changes."""
    if not any(key.kind in ("WorkloadEndpoint", "HostEndpoint") for key in there):
        raise InvalidConfig(
            "cannot compare: there is no workload and no host endpoint: give them with --endpoints",
            details="calicoctl get workloadendpoint -A -o yaml > FILE",
        )


def propose(now: ProposedChange, documents: Iterable[dict[str, Any]], arguments: Namespace) -> ProposedChange:
    """What these policies would change, which were made here. ``now`` is not to be used any more. Raises
    InvalidConfig.
    """
    new: FileRecords = {}
    for document in documents:
        key, record = _record("what was made", document, arguments, _CHANGEABLE, _POLICY_WORDS)
        assert record is not None
        new[key] = record
    return replace(compared(now.records, new, (), list(now.uncertain), ()), hosts=now.hosts)


def _named(name: str, records: PolicyRecords, namespace: str) -> ResourceKey:
    """A policy as the command line names it: KIND/NAME, or KIND/NAMESPACE/NAME."""
    kind, _, path = name.partition("/")
    space, _, own = path.rpartition("/")
    spaces = {space} if space else {"", namespace or DEFAULT_NAMESPACE}
    found = [
        key
        for key in records.records
        if key.kind in POLICY_KINDS and (key.kind.lower(), key.name) == (kind.lower(), own) and key.namespace in spaces
    ]
    if not found:
        raise InvalidConfig(
            f"cannot take away {name}: there is no such policy", details="give KIND/NAME, or KIND/NAMESPACE/NAME"
        )
    return found[0]


def _read_stored(session: Session, arguments: Namespace, uncertain: list[str]) -> PolicyRecords:
    def hear(problem: object) -> None:
        if isinstance(problem, CorruptRecord):
            uncertain.append(str(problem))
        else:
            arguments.warn(problem)

    records = load(session, Namespace(overlay=(), warn=hear))
    uncertain += [why for _, why in session.take_damaged()]
    return records


def compared(
    records: PolicyRecords,
    new: FileRecords,
    removed: Collection[ResourceKey],
    uncertain: list[str],
    staged: tuple[ResourceKey, ...],
) -> ProposedChange:
    """What records would be, and decide, with ``new`` and without ``removed``. Raises InvalidConfig."""
    graph = _graph_of(records)
    before = graph.wanted()
    uncertain += [f"{describe(key)} is not in force: {why}" for key, why in graph.problems.items()]
    known = dict(graph.problems)
    changed = [key for key, record in new.items() if not _is_same(records.records.get(key), record)]
    replaced = {key: records.records.get(key) for key in (*changed, *removed)}
    for key in changed:
        graph.put(key, new[key])
        records.records[key] = new[key]
    for key in removed:
        graph.put(key, None)
        records.records.pop(key, None)
    graph.flush()
    for key, why in graph.problems.items():
        if key not in known:
            raise InvalidConfig(f"cannot use {describe(key)}: {why}")
    records.over_budget = dict(graph.over_budget)
    told = graph.facts.told_warnings()
    keys = *changed, *removed
    return ProposedChange(records, before, graph.wanted(), keys, uncertain, staged, told, replaced=replaced)


def _graph_of(records: PolicyRecords) -> Graph:
    graph = Graph(lambda _: True, lambda _: True, alone=False)
    graph.set_budget(records.budget)
    for key, record in records.records.items():
        graph.put(key, records.claimed.get(key, record))
    graph.flush()
    return graph


def _is_same(one: GraphRecord | None, other: GraphRecord) -> bool:
    """Whether a record means the same; what else is stored with it does not matter."""
    if isinstance(one, Resource) and isinstance(other, Resource):
        return (one.spec, one.metadata.labels) == (other.spec, other.metadata.labels)
    return one == other


# -- files ------------------------------------------------------------------------------------------------------------


def documents_of(name: str, stdin: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Documents with the file that each is of; of a directory those of all files below it."""
    for file in [name] if name == "-" else find_files(name, recursive=True):
        for document in read_files(file, stdin):
            yield ("standard input" if file == "-" else file), document


def _read_policies(names: Iterable[str], arguments: Namespace, staged: dict[ResourceKey, str]) -> FileRecords:
    return _read(names, arguments, _CHANGEABLE, _POLICY_WORDS, staged)


def _read_endpoints(arguments: Namespace) -> FileRecords:
    return _read(arguments.endpoints, arguments, _ENDPOINTS, _ENDPOINT_WORDS, {})


def _read(
    names: Iterable[str], arguments: Namespace, kinds: tuple[str, ...], words: str, staged: dict[ResourceKey, str]
) -> FileRecords:
    found: FileRecords = {}
    of_file: dict[ResourceKey, str] = {}
    for name in names:
        for source, document in documents_of(name, arguments.stdin):
            key, record = _record(source, document, arguments, kinds, words)
            if key in of_file:
                raise InvalidConfig(
                    f"cannot use {describe(key)}: it is in {of_file[key]} and again in {source}: keep one of them"
                )
            of_file[key] = source
            if record is None:
                staged[key] = source
            else:
                found[key] = record
    return found


def _record(
    source: str, document: dict[str, Any], arguments: Namespace, kinds: tuple[str, ...], words: str
) -> tuple[ResourceKey, GraphRecord | None]:
    """None for a staged policy, which enforces nothing, and for what Kubernetes ignores. Raises InvalidConfig."""
    kind = document.get("kind")
    try:
        if (document.get("apiVersion"), kind) in (("v1", "Namespace"), ("v1", "ServiceAccount")):
            profile, made = _PROFILES[str(kind)](document)
            return profile, decode_record(profile, made)[0]
        key, raw = read_policy_file(document, arguments.namespace)
        if key.kind in STAGED and kinds is _CHANGEABLE:
            return key, None
        if key.kind not in kinds:
            raise InvalidConfig(f"a {kind} is not used here, only {words}", details="name other files, or leave it out")
        record, left_out = decode_record(key, raw)
    except CorruptRecord as e:
        raise InvalidConfig(f"cannot use {source}: {e}") from e
    except InvalidConfig as e:
        raise InvalidConfig(f"cannot use {source}: {_shown(document)}{e.message}", details=e.details) from e
    for why in left_out:
        arguments.warn(f"{describe(key)} in {source}: {why}")
    return key, record


def _shown(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{document.get('kind')} {name}: " if name else ""


# -- what files leave out ---------------------------------------------------------------------------------------------


def _add_missing(there: FileRecords, endpoints: FileRecords, *states: FileRecords) -> None:
    """What every cluster has: its tiers, the profile that allows everything, and a namespace's and a service account's
    profile with their names as labels, which allow everything and nothing.
    """
    for name, (order, action) in TIERS.items():
        spec = {"order": order, "defaultAction": action}
        there[ResourceKey("Tier", name)] = Resource("Tier", Metadata(name), spec, {})
    there[ResourceKey("Profile", DEFAULT_ALLOW.metadata.name)] = DEFAULT_ALLOW
    for record in endpoints.values():
        if isinstance(record, WorkloadEndpoint):
            for profile in record.profiles:
                key = ResourceKey("Profile", profile)
                if key not in endpoints and not any(key in state for state in states):
                    there.setdefault(key, _standing_for(profile))
    there.update(endpoints)


def _standing_for(profile: str) -> Resource:
    kind, _, name = profile.partition(".")
    spec: dict[str, Any] = {}
    if kind == "kns":
        spec = {"ingress": _ALLOW, "egress": _ALLOW, "labelsToApply": {"pcns.projectcalico.org/name": name}}
    elif kind == "ksa":
        spec = {"labelsToApply": {"pcsa.projectcalico.org/name": name.partition(".")[2]}}
    return Resource("Profile", Metadata(profile), spec, {})


def _require_tiers(new: FileRecords, records: PolicyRecords, removed: list[ResourceKey]) -> None:
    """A policy in a tier that there is not would be in force, after all other tiers: nobody means that."""
    tiers = {key.name for key in (*new, *records.records) if key.kind == "Tier"}
    tiers -= {key.name for key in removed if key.kind == "Tier"}
    for key, record in new.items():
        if key.kind in POLICY_KINDS and isinstance(record, Resource):
            tier = str(record.spec.get("tier") or DEFAULT_TIER)
            if tier not in tiers and tier not in TIERS:
                raise InvalidConfig(
                    f"cannot use {describe(key)}: there is no tier {tier}",
                    details=f"known are {', '.join(sorted(tiers))}; give the tier's file, too",
                )
