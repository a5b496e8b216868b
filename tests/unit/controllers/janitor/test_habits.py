"""What the janitor does where nobody says otherwise: documented, so pinned."""

from cni_calico.controllers.janitor.run import Habits, parse_grace


def test_a_pod_is_gone_for_fifteen_minutes_before_its_addresses_go():
    habits = Habits()
    assert habits.grace_s == 15 * 60
    assert parse_grace({"spec": {}}, habits.grace_s) == 15 * 60


def test_the_datastore_is_asked_ten_times_a_second_at_most():
    assert Habits().per_second == 10
