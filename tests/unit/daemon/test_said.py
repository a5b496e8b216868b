"""A text is logged when it begins to hold."""

from cni_calico.daemon.said import Said
from cni_calico.log import Log


class Lines(Log):
    def __init__(self):
        super().__init__("none", stderr=False)
        self.lines = []

    def write(self, level, text):
        self.lines.append((level, text))


def test_what_stays_is_logged_once_and_what_comes_back_again():
    said = Said(log := Lines())
    for texts in (["a"], ["a", "b"], ["b"], [], ["b"]):
        said.say("topic", texts)
    said.say("other", ["a"], "error")
    assert log.lines == [("warning", "a"), ("warning", "b"), ("warning", "b"), ("error", "a")]
    assert (said.texts("topic"), said.texts("never")) == (("b",), ())


def test_what_varies_is_logged_and_not_compared():
    said = Said(log := Lines())
    for pause_s in (1, 2):
        said.say(("any", "topic"), ["it fails"], more=f"; next try in {pause_s} s")
    assert log.lines == [("warning", "it fails; next try in 1 s")]
