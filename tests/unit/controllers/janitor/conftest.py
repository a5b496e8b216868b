"""A janitor that runs while a test lasts."""

import pytest

from tests.unit.controllers.janitor.field import Field


@pytest.fixture
def janitor_field():
    made = []

    def make(**options):
        made.append(Field(**options))
        made[-1].thread.start()
        return made[-1]

    yield make
    for one in made:
        one.stop()
