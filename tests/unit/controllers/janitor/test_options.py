"""What the janitor's options mean, and what counts where nobody says otherwise."""

from cni_calico.controllers.janitor.options import JanitorOptions, parse_grace


def test_graces():
    def grace(value):
        return parse_grace({"spec": {"controllers": {"node": {"leakGracePeriod": value}}}}, 900.0)

    assert (grace("30m"), grace("1m30s"), grace("0s"), grace("soon"), grace(7)) == (1800.0, 90.0, None, 900.0, 900.0)
    assert parse_grace({}, 900.0) == parse_grace({"spec": {"controllers": None}}, 900.0) == 900.0


def test_a_pod_is_gone_for_fifteen_minutes_before_its_addresses_go():
    """What is documented where nobody says otherwise."""
    options = JanitorOptions()
    assert options.grace_s == 15 * 60
    assert parse_grace({"spec": {}}, options.grace_s) == 15 * 60


def test_what_an_add_may_still_be_writing_is_left_alone_for_two_minutes():
    assert JanitorOptions().calls_s == 120


def test_the_datastore_is_asked_ten_times_a_second_at_most():
    assert JanitorOptions().per_second == 10
