from errno import ENOSPC

import pytest

from cni_calico.doing import Doing
from cni_calico.errors import InvalidConfig, KernelError, TryAgain


def test_a_refusal_becomes_an_error_that_says_what_was_wanted_and_why() -> None:
    with pytest.raises(KernelError) as raised, Doing("write /f"):
        raise OSError(ENOSPC, "No space left on device", "/f")
    assert (str(raised.value), raised.value.errno) == ("cannot write /f: No space left on device", ENOSPC)
    assert isinstance(raised.value.__cause__, OSError)


def test_an_error_of_the_kind_that_was_named() -> None:
    with pytest.raises(TryAgain, match=r"^cannot read /f: it is gone$"), Doing("read /f", TryAgain):
        raise OSError("it is gone")


def test_other_errors_and_results_are_left_alone() -> None:
    with pytest.raises(InvalidConfig, match=r"^wrong$"), Doing("write /f"):
        raise InvalidConfig("wrong")
    with Doing("write /f"):
        found = 1
    assert found == 1
