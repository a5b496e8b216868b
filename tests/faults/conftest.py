"""Fixtures of the end-to-end tests, for the judge's own."""

from tests.e2e.conftest import plain_node  # noqa: F401 - a fixture
from tests.netns.conftest import host_ns, make_pod_ns, pod_ns  # noqa: F401 - fixtures
