"""What a controller changes of an object: its finalizer, its condition, nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.controllers.conditions.wishes import ObjectCondition, Wish, apply_wish, status_of

NAME, NOW, LATER = "projectcalico.org/ippool-finalizer", "2026-08-01T00:00:00Z", "2026-08-02T00:00:00Z"
YES, NO = ObjectCondition("Ready", True, "OK", "fine"), ObjectCondition("Ready", False, "Bad", "not fine")


def test_a_condition_keeps_its_time_while_its_status_is_the_same():
    first = apply_wish({"metadata": {"name": "a"}, "spec": {}}, Wish(True, YES), NAME, NOW)
    assert first["metadata"]["finalizers"] == [NAME]
    [said] = first["status"]["conditions"]
    assert said == {"type": "Ready", "status": "True", "reason": "OK", "message": "fine", "lastTransitionTime": NOW}
    assert apply_wish(first, Wish(True, YES), NAME, LATER) == first
    other = apply_wish(first, Wish(True, ObjectCondition("Ready", True, "Other", "x")), NAME, LATER)
    assert other["status"]["conditions"][0]["lastTransitionTime"] == NOW
    changed = apply_wish(first, Wish(False, NO), NAME, LATER)
    assert changed["status"]["conditions"][0]["lastTransitionTime"] == LATER and status_of(changed, "Ready") == "False"
    assert changed["metadata"]["finalizers"] == []


def test_what_is_going_gets_no_finalizer():
    going = {"metadata": {"deletionTimestamp": NOW, "finalizers": ["other"]}}
    assert apply_wish(going, Wish(True), NAME, NOW) == going


CONDITIONS = st.lists(st.dictionaries(st.sampled_from(["type", "x"]), st.text(max_size=2)))
VALUES = st.none() | st.integers() | st.text(max_size=3) | CONDITIONS


@given(
    st.dictionaries(st.sampled_from(["conditions", "other"]), VALUES) | VALUES,
    st.lists(st.sampled_from([NAME, "other/one"]), unique=True),
    st.booleans(),
    st.sampled_from([None, YES, NO]),
)
def test_nothing_else_changes_and_a_second_time_nothing_does(status, finalizers, holds, condition):
    document = {"metadata": {"name": "a", "finalizers": finalizers}, "spec": {"cidr": "x"}, "status": status}
    wish = Wish(holds, condition)
    once = apply_wish(document, wish, NAME, NOW)
    assert apply_wish(once, wish, NAME, LATER) == once
    assert once["spec"] == document["spec"]
    assert [name for name in once["metadata"]["finalizers"] if name != NAME] == [n for n in finalizers if n != NAME]
    assert (NAME in once["metadata"]["finalizers"]) == holds
