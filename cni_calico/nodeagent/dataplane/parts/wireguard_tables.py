"""The routes of WireGuard's two tables, and the rules by which this node's pods ask the second one.

Rule: what is to be done is encryption/order.py's; here it is done, said, and what failed is reported.
"""

from __future__ import annotations

from collections.abc import Collection

from cni_calico.deadline import Deadline
from cni_calico.kernel import host_routes, routing_rules
from cni_calico.model.host import HostRoute, RoutingRule
from cni_calico.nodeagent.dataplane.delta import Changes
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption
from cni_calico.nodeagent.dataplane.encryption.order import OrderedRoutes, order_routes
from cni_calico.nodeagent.dataplane.passes import Pass, described


def change_routes(changes: Changes[HostRoute], table: int, deadline: Deadline, done: Pass) -> bool:
    """Whether any failed."""
    if not changes:
        return False
    failures = host_routes.apply_host_routes(changes.add, changes.remove, deadline, table=table)
    done.failed += [str(error) for _, error in failures]
    done.changed += described(f"route of table {table}", "changed", [*changes.add, *changes.remove])
    return bool(failures)


def keep_only(
    wanted: Collection[HostRoute], present: Collection[HostRoute], table: int, deadline: Deadline, done: Pass
) -> None:
    """Of a family that is not encrypted any more: the main table has all that it needs."""
    routes = order_routes(wanted, present, partial=False)
    for changes in (routes.before, routes.after):
        change_routes(changes, table, deadline, done)


def begin_hosts(
    desired: DesiredEncryption, wanted: Collection[HostRoute], deadline: Deadline, done: Pass
) -> tuple[OrderedRoutes, frozenset[RoutingRule], bool]:
    """What pods of this node send to other nodes' own addresses: a table that only they ask. Its routes, the rules
    that are to go, and whether it failed.
    """
    table, family = desired.host_table, desired.family
    if not table:
        return OrderedRoutes(), frozenset(), False
    there = {rule for rule in routing_rules.read_rules(family, deadline) if rule.table == table and rule.source}
    rules = {RoutingRule(family, desired.priority - 1, table, source=one) for one in desired.own if wanted}
    present = host_routes.read_host_routes(deadline, table=table, families=(family,))
    routes = order_routes(wanted, present, partial=desired.partial)
    failed = change_routes(routes.before, table, deadline, done)
    for rule in sorted(rules - there, key=str):
        routing_rules.ensure_rule(rule, deadline)
        done.changed.append(f"added routing rule {rule}")
    return routes, frozenset(there - rules), failed


def end_hosts(
    desired: DesiredEncryption,
    routes: OrderedRoutes,
    rules: frozenset[RoutingRule],
    deadline: Deadline,
    done: Pass,
) -> bool:
    failed = change_routes(routes.after, desired.host_table, deadline, done)
    for rule in rules:
        routing_rules.remove_rule(rule, deadline)
        done.changed.append(f"removed routing rule {rule}")
    return failed


def remove_hosts(desired: DesiredEncryption, deadline: Deadline, done: Pass) -> None:
    routes, rules, _ = begin_hosts(desired, frozenset(), deadline, done)
    end_hosts(desired, routes, rules, deadline, done)
