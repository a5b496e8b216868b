"""``calicoctl datastore etcd-roles``: the least rights of each program on etcd, for etcd's own authentication.

Rule: a right is a key or a listing of ours, so that its range of keys is computed by what reads and writes records
(model/keys.py), never written down here. Ranges that several lists need are named once. Rights are for a program, not
for one node: in most keys a node's name does not come first.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cni_calico.controllers.copies.rules import ENDPOINTS, NAMESPACES, NODES, POLICIES, SERVICE_ACCOUNTS
from cni_calico.ctl.output.texts import render_json, render_yaml
from cni_calico.datastore.etcd.compaction import KEY as COMPACTION
from cni_calico.datastore.etcd.election import KEYS as LEASES
from cni_calico.datastore.etcd.host_status import PREFIX as HOST_STATUS
from cni_calico.errors import InvalidConfig
from cni_calico.model.belongings import NAMING
from cni_calico.model.documents.tiers import TIERS
from cni_calico.model.keys import (
    BGP_DEFAULT,
    CLUSTER,
    CONTROLLERS_DEFAULT,
    FELIX_DEFAULT,
    IPAM,
    RESOURCES,
    AffinityList,
    BlockList,
    EverythingList,
    HandleList,
    IPAMConfigList,
    Key,
    ListKey,
    ResourceKey,
    ResourceList,
    etcd_path,
    etcd_prefix,
)
from cni_calico.nodeagent.startup.pools import NAMES as DEFAULT_POOLS
from cni_calico.policy.decode import KINDS as POLICY_KINDS

SCRIPT = "sh"
FORMATS = (SCRIPT, "json", "yaml")
_LISTINGS = (AffinityList, BlockList, EverythingList, HandleList, IPAMConfigList, ResourceList)


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One grant of etcd: of a key, or of all keys that begin with it. Whoever writes also reads: writes compare."""

    key: str
    is_prefix: bool
    writes: bool

    @property
    def type(self) -> str:
        return "readwrite" if self.writes else "read"

    def covers(self, other: Right) -> bool:
        """Whether it makes another one superfluous."""
        is_within = other.key.startswith(self.key) if self.is_prefix else self.key == other.key and not other.is_prefix
        return is_within and self.writes >= other.writes


def _right(what: Key | ListKey | str, *, writes: bool) -> Right:
    if isinstance(what, str):
        return Right(what, True, writes)
    if isinstance(what, _LISTINGS):
        return Right(etcd_prefix(what), True, writes)
    return Right(etcd_path(what), False, writes)


def _reads(*what: Key | ListKey | str) -> tuple[Right, ...]:
    return tuple(_right(one, writes=False) for one in what)


def _writes(*what: Key | ListKey | str) -> tuple[Right, ...]:
    return tuple(_right(one, writes=True) for one in what)


def _all(kinds: Iterable[str]) -> tuple[ResourceList, ...]:
    return tuple(ResourceList(kind) for kind in kinds)


def _of_every_node(kind: str) -> ResourceList:
    """What nodes have of their own among the configurations (model/belongings.py)."""
    return ResourceList(kind, "", "node.")


_ENDPOINTS, _NODES, _PROFILES = ResourceList("WorkloadEndpoint"), ResourceList("Node"), ResourceList("Profile")
_SETTINGS = ResourceList(CONTROLLERS_DEFAULT.kind, "", CONTROLLERS_DEFAULT.name)
# whoever assigns and releases addresses; a missing configuration is made
_ADDRESSES = (
    *_reads(*_all(("IPPool", "IPReservation", "Node"))),
    *_writes(BlockList(), AffinityList(), HandleList(), IPAMConfigList()),
)
# the CNI plugin and its server; a change of the endpoint is also a release
_PLUGIN = (*_ADDRESSES, *_reads(ResourceList(CLUSTER.kind)), *_writes(_ENDPOINTS))
# start-up writes the Node and the cluster's defaults; the agent carries out releases that calls owe
_AGENT = (
    *_PLUGIN,
    *_reads(*_all((*POLICY_KINDS, "IPPool", "FelixConfiguration", "BGPConfiguration", "BGPPeer", "BGPFilter"))),
    *_reads(LEASES),
    *_writes(_NODES, ResourceList("CalicoNodeStatus"), CLUSTER, FELIX_DEFAULT, BGP_DEFAULT),
    *_writes(_of_every_node("FelixConfiguration"), *(ResourceKey("Tier", name) for name in TIERS)),
    *_writes(*(ResourceKey("IPPool", name) for name in DEFAULT_POOLS.values()), HOST_STATUS),
)
# who cleans up for the cluster: one agent, or the controllers
_JANITOR = (
    *_ADDRESSES,
    *_reads(CLUSTER, _SETTINGS),
    *_writes(_NODES, _ENDPOINTS, *_all(NAMING), LEASES),
    *_writes(_of_every_node("FelixConfiguration"), _of_every_node("BGPConfiguration")),
)
_CONTROLLERS = (
    *_JANITOR,
    *_writes(_SETTINGS, AffinityList(type="virtual"), ResourceList("HostEndpoint")),
    *_writes(*(one.records for one in (NAMESPACES, SERVICE_ACCOUNTS, POLICIES, ENDPOINTS, NODES))),
    Right(COMPACTION.decode(), False, True),
)
# everything that is stored can be shown and exported; what is no record is left to the programs
_CALICOCTL = (*_reads(EverythingList()), *_writes(RESOURCES, IPAM))

PLUGIN, AGENT, JANITOR = "calico-cni", "calico-node", "calico-janitor"
CONTROLLERS, CALICOCTL = "calico-kube-controllers", "calicoctl"


def least(rights: Iterable[Right]) -> tuple[Right, ...]:
    """PURE: the same rights, without those that others include, in the order of their keys."""
    unique = sorted(set(rights))
    return tuple(one for one in unique if not any(other != one and other.covers(one) for other in unique))


def desired_roles(*, profiles: bool) -> dict[str, tuple[Right, ...]]:
    """PURE: the rights of every role. ``profiles``: the plugin makes profiles, as it does without policy.type k8s."""
    made = _writes(_PROFILES) if profiles else ()
    return {
        PLUGIN: least((*_PLUGIN, *made)),
        AGENT: least(_AGENT),
        JANITOR: least(_JANITOR),
        CONTROLLERS: least(_CONTROLLERS),
        CALICOCTL: least(_CALICOCTL),
    }


def desired_users(named: Mapping[str, str], *, agents_clean: bool) -> dict[str, tuple[str, ...]]:
    """PURE: the roles of each user. ``named``: role -> user; several roles may have one user."""
    users: dict[str, tuple[str, ...]] = {}
    for role, user in named.items():
        roles = (role, JANITOR) if role == AGENT and agents_clean else (role,)
        users[user] = tuple(dict.fromkeys((*users.get(user, ()), *roles)))
    return users


def show(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Opens no datastore. Raises InvalidConfig."""
    agents_clean = arguments.without_controllers
    named = {PLUGIN: arguments.plugin, AGENT: arguments.agent, CALICOCTL: arguments.calicoctl}
    if not agents_clean:
        named[CONTROLLERS] = arguments.controllers
    for user in named.values():
        if not user.strip() or user.startswith("-") or "/" in user or not user.isprintable():
            raise InvalidConfig(f"{user!r} cannot be the name of a user of etcd here")
    users = desired_users(named, agents_clean=agents_clean)
    needed = {role for roles in users.values() for role in roles}
    rights = desired_roles(profiles=not arguments.kubernetes)
    roles = {role: granted for role, granted in rights.items() if role in needed}
    if arguments.output == SCRIPT:
        return render_script(roles, users, arguments.passwords)
    value = as_value(roles, users)
    return render_json(value) if arguments.output == "json" else render_yaml(value)


def as_value(roles: Mapping[str, Sequence[Right]], users: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """PURE."""
    return {
        "roles": [
            {
                "name": name,
                "permissions": [{"type": one.type, "key": one.key, "prefix": one.is_prefix} for one in rights],
            }
            for name, rights in roles.items()
        ],
        "users": [{"name": name, "roles": list(granted)} for name, granted in users.items()],
    }


_HEAD = """\
#!/bin/sh
# The least rights of Calico's programs on etcd, as etcdctl makes them (3.4 or later). Give etcdctl its endpoints, and a
# user with the role root, by its own variables (ETCDCTL_ENDPOINTS, ETCDCTL_USER, ...). It can be run again: what is
# there stays. Rights that a role has besides these stay, too: 'etcdctl role get' shows them.
set -eu
export ETCDCTL_API=3
role() { etcdctl role get "$1" >/dev/null 2>&1 </dev/null || etcdctl role add "$1" </dev/null; }
grant() { etcdctl role grant-permission "$@" >/dev/null </dev/null; }
has() { etcdctl user grant-role "$1" "$2" </dev/null; }
"""
_KNOWN_BY_CERTIFICATE = """\
# users known by the common name of their certificate (etcd with --client-cert-auth); for passwords see --passwords
user() { etcdctl user get "$1" >/dev/null 2>&1 </dev/null || etcdctl user add "$1" --no-password </dev/null; }
"""
_KNOWN_BY_PASSWORD = """\
# each user's password is in the file of that name
passwords={directory}
user() {{
  etcdctl user get "$1" >/dev/null 2>&1 </dev/null || etcdctl user add "$1" --interactive=false <"$passwords/$1"
}}
"""


def render_script(roles: Mapping[str, Sequence[Right]], users: Mapping[str, Sequence[str]], passwords: str = "") -> str:
    """PURE: commands for a shell. ``passwords``: the directory with a file for each user, "" without passwords."""
    how = _KNOWN_BY_PASSWORD.format(directory=shlex.quote(passwords)) if passwords else _KNOWN_BY_CERTIFICATE
    lines = []
    for role, rights in roles.items():
        lines += ["", f"role {role}"]
        for one in rights:
            prefix = "--prefix=true " if one.is_prefix else ""
            lines.append(f"grant {prefix}{role} {one.type} {shlex.quote(one.key)}")
    for user, granted in users.items():
        lines += ["", f"user {shlex.quote(user)}", *(f"has {shlex.quote(user)} {role}" for role in granted)]
    return _HEAD + how + "\n".join(lines) + "\n"
