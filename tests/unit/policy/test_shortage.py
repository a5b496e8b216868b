"""What waits while there is no memory for the members of sets: it opens nothing, cuts no other namespace, and ends."""

from collections import defaultdict
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.budget import is_waiting
from tests.unit.policy.cluster import document, graph_of, put
from tests.unit.policy.test_scenarios import ONE, policy


def network_set(name="n", count=3000, *, namespace="ns", first=0, **labels):
    nets = [f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}/32" for i in range(first, first + count)]
    kind = "NetworkSet" if namespace else "GlobalNetworkSet"
    return {(kind, namespace, name): document({"nets": nets}, labels or {"net": "yes"})}


def tenants_policy(name="p", selectors=2, *, namespace="ns", selector="all()", order=None, action="Allow"):
    rules = [{"action": action, "source": {"selector": f"has(net) && !has(x{i})"}} for i in range(selectors)]
    spec = {"selector": selector, "order": order, "ingress": rules, "types": ["Ingress"]}
    return {("NetworkPolicy", namespace, name): document(spec)}


NOW = count(step=10)


def reconsider(graph):
    return graph.reconsider(next(NOW))


def state(graph):
    """Of each policy: its rules' actions, "waits" if it denies for memory; the numbers of sets' members, sorted."""
    wanted = graph.wanted()
    policies = {
        name.name: "waits" if is_waiting(rules) else [rule.action for rule in rules.ingress]
        for name, rules in wanted.policies.items()
        if name.kind != "Profile"
    }
    return policies, sorted(len(members.addresses) for members in wanted.sets.values())


def waiting(graph):
    return {(one.key.kind, one.key.name): one.is_denied for one in graph.facts.waiting}


def bounded(documents, members):
    """``members``: those that there is memory for at each flush."""
    graph = graph_of({})
    room = [members]
    graph.bound_members(lambda count: count <= room[0])
    change(graph, documents)
    return graph, room


def change(graph, documents):
    for key, value in documents.items():
        put(graph, key, value)
    graph.flush()


def test_a_policy_whose_sets_are_too_large_denies_until_there_is_room():
    graph, room = bounded(ONE | network_set() | tenants_policy("large", 4) | tenants_policy("small", 1), 9000)
    assert state(graph) == ({"large": "waits", "small": ["Allow"]}, [3000])
    assert waiting(graph) == {("NetworkPolicy", "large"): True}
    assert reconsider(graph) is None
    room[0] = 100_000
    assert reconsider(graph) == ResourceKey("NetworkPolicy", "large", "ns")
    change(graph, tenants_policy("large", 4))
    assert state(graph) == ({"large": ["Allow"] * 4, "small": ["Allow"]}, [3000] * 4) and not waiting(graph)


def test_of_a_policy_in_force_the_rules_before_stay_unless_it_governs_something_else():
    graph, _ = bounded(ONE | network_set() | tenants_policy(selectors=1), 9000)
    change(graph, tenants_policy(selectors=5, action="Deny"))
    assert state(graph) == ({"p": ["Allow"]}, [3000]) and waiting(graph) == {("NetworkPolicy", "p"): False}
    change(graph, tenants_policy(selectors=5, action="Deny", order=3))
    assert state(graph) == ({"p": "waits"}, []) and waiting(graph) == {("NetworkPolicy", "p"): True}
    change(graph, tenants_policy(selectors=2, order=3))
    assert state(graph) == ({"p": ["Allow"] * 2}, [3000] * 2) and not waiting(graph)
    change(graph, tenants_policy(selectors=5, action="Deny"))
    change(graph, {("NetworkPolicy", "ns", "p"): None})
    assert state(graph) == ({}, []) and not waiting(graph)


def test_a_network_set_waits_as_it_was_and_the_namespaces_new_policies_with_it():
    graph, room = bounded(ONE | tenants_policy(selectors=2) | network_set(count=3000), 9000)
    change(graph, network_set(count=20_000))
    assert state(graph) == ({"p": ["Allow"] * 2}, [3000] * 2) and waiting(graph) == {("NetworkSet", "n"): False}
    change(graph, tenants_policy("new", 1) | tenants_policy("others", 1, namespace="other"))
    assert state(graph)[0] == {"p": ["Allow"] * 2, "new": "waits"}
    assert reconsider(graph) is None
    room[0] = 100_000
    assert reconsider(graph) == ResourceKey("NetworkSet", "n", "ns")
    change(graph, network_set(count=20_000))
    reconsider(graph)
    graph.flush()
    assert state(graph) == ({"p": ["Allow"] * 2, "new": ["Allow"]}, [20_000] * 2) and not waiting(graph)


def test_a_network_set_that_is_new_or_has_other_labels_waits():
    graph, _ = bounded(ONE | tenants_policy(selectors=2), 9000)
    change(graph, network_set(count=5000))
    assert state(graph) == ({"p": ["Allow"] * 2}, [0, 0]) and waiting(graph) == {("NetworkSet", "n"): False}
    change(graph, network_set(count=4000, other="label"))
    assert state(graph)[1] == [0, 0] and not waiting(graph)
    change(graph, network_set(count=4000))
    assert state(graph)[1] == [0, 0] and waiting(graph)
    change(graph, {("NetworkSet", "ns", "n"): None})
    assert not waiting(graph)


def test_what_nothing_selects_counts_too():
    graph, _ = bounded(ONE, 9000)
    change(graph, network_set(count=10_000))
    assert waiting(graph)


def test_what_no_tenant_can_write_never_waits():
    rules = [{"action": "Allow", "source": {"selector": f"has(net) && !has(x{i})"}} for i in range(4)]
    graph, _ = bounded(ONE | network_set(namespace="") | policy("global", "all()", ingress=rules), 0)
    assert state(graph) == ({"global": ["Allow"] * 4}, [3000] * 4) and not waiting(graph)


def test_where_a_network_set_becomes_smaller_or_goes_policies_are_tried_again():
    for smaller in (network_set(count=10), {("NetworkSet", "ns", "n"): None}):
        graph, _ = bounded(ONE | network_set() | tenants_policy(selectors=4), 9000)
        assert reconsider(graph) is None
        change(graph, smaller)
        assert reconsider(graph) == ResourceKey("NetworkPolicy", "p", "ns")
        change(graph, tenants_policy(selectors=4))
        assert not waiting(graph)


def test_sets_made_ahead_are_given_up():
    graph, room = bounded(ONE | network_set(), 9000)
    key = ResourceKey("NetworkPolicy", "p", "ns")
    other = graph_of(ONE | tenants_policy(selectors=6))
    record = other.last_valid(key)
    steps = graph.make_ahead(record)
    while True:
        try:
            next(steps)
        except StopIteration as e:
            assert e.value is False
            break
        graph.flush()  # between two slices
        room[0] -= 3000  # what is made is measured then
    graph.put(key, record)
    graph.flush()
    assert state(graph) == ({"p": "waits"}, [])


NAMESPACES = ["a", "b"]
changes = st.one_of(
    st.tuples(
        st.just("NetworkPolicy"),
        st.sampled_from(NAMESPACES),
        st.sampled_from("pq"),
        st.none()
        | st.tuples(st.integers(1, 4), st.sampled_from(["all()", "has(z)"]), st.sampled_from(["Allow", "Deny"])),
    ),
    st.tuples(
        st.just("NetworkSet"),
        st.sampled_from(NAMESPACES),
        st.sampled_from("mn"),
        st.none()
        | st.tuples(st.integers(1, 4), st.sampled_from([{"net": "yes"}, {"x1": "", "net": "yes"}, {"no": "net"}])),
    ),
    st.tuples(st.just("room"), st.integers(0, 12)),
    st.tuples(st.just("reconsider")),
)


def written(step):
    kind, namespace, name, value = step
    if value is None:
        return (kind, namespace, name), None
    if kind == "NetworkSet":
        count, labels = value
        (made,) = network_set(name, 1000 * count, namespace=namespace, **labels).items()
    else:
        selectors, selector, action = value
        (made,) = tenants_policy(name, selectors, namespace=namespace, selector=selector, action=action).items()
    return made


def workloads():
    found = {}
    for number, namespace in enumerate(NAMESPACES):
        spec = {
            **{"orchestrator": "k8s", "node": "here", "pod": namespace, "endpoint": "eth0", "profiles": []},
            **{"interfaceName": f"cali{namespace}", "ipNetworks": [f"192.0.2.{number}/32"]},
        }
        found["WorkloadEndpoint", namespace, namespace] = document(spec, {"z": ""})
    return found


@settings(max_examples=40)
@given(st.lists(changes, max_size=14))
def test_any_shortage_opens_nothing_and_ends(steps):
    """Rules in force are those of a version that was written, or deny; a set that a rule reads is complete."""
    documents = workloads()
    graph, room = bounded(documents, 6000)
    versions = defaultdict(set)
    for step in steps:
        if step[0] == "room":
            room[0] = 1000 * step[1]
        elif step[0] == "reconsider":
            reconsider(graph)
        else:
            key, value = written(step)
            put(graph, key, value)
            documents[key] = value
            if value is not None and key[0] == "NetworkPolicy":
                (rules,) = (
                    found
                    for name, found in graph_in_full(documents).policies.items()
                    if (name.namespace, name.name) == key[1:]
                )
                versions[key].add(rules)
        graph.flush()
        wanted = graph.wanted()
        for name, rules in wanted.policies.items():
            assert is_waiting(rules) or rules in versions[name.kind, name.namespace, name.name]
        read = {found for rules in wanted.policies.values() for rule in rules.rules() for found in rule.set_ids()}
        assert read <= wanted.sets.keys()
        members = graph_in_full({**documents, **as_held(graph)}).sets
        assert all(wanted.sets[one] == members[one] for one in read & members.keys())
    room[0] = 10**9
    while graph.facts.waiting:
        due = reconsider(graph)
        if due is not None:
            put(graph, (due.kind, due.namespace, due.name), documents[due.kind, due.namespace, due.name])
        graph.flush()
    assert graph.wanted() == graph_in_full(documents)


def graph_in_full(documents):
    graph = graph_of({key: value for key, value in documents.items() if value is not None})
    graph.flush()
    return graph.wanted()


def as_held(graph):
    """The network sets that wait, as the graph has them."""
    found = {}
    for one in graph.facts.waiting:
        key = one.key.kind, one.key.namespace, one.key.name
        if one.key.kind == "NetworkSet":
            held = graph.last_valid(one.key)
            nets = [".".join(map(str, address)) + "/32" for address in held.addresses] if held else []
            found[key] = document({"nets": nets}, dict(held.labels)) if held else None
    return found
