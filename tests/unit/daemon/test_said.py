"""A text is logged when it begins to hold."""

from cni_calico.daemon.said import Said
from tests.fakes.notes import Notes


def test_what_stays_is_logged_once_and_what_comes_back_again():
    said = Said(log := Notes())
    for texts in (["a"], ["a", "b"], ["b"], [], ["b"]):
        said.say("topic", texts)
    said.say("other", ["a"], "error")
    assert log.texts == ["warning: a", "warning: b", "warning: b", "error: a"]
    assert (said.texts("topic"), said.texts("never")) == (("b",), ())


def test_what_varies_is_logged_and_not_compared():
    said = Said(log := Notes())
    for pause_s in (1, 2):
        said.say(("any", "topic"), ["it fails"], more=f"; next try in {pause_s} s")
    assert log.said == ["it fails; next try in 1 s"]
