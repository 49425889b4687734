"""Fixtures that more than one part of the suite uses."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sidecar.devbroker.local_broker import LocalBroker
from tests import broker as broker_of_tests

# How long an input takes to make says more about the machine than about the test.
settings.register_profile("project", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("project")

# A run in the background of a script ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


_RAN_OUT_OF_TIME = [r"not within|did not end within", "TimeoutExpired", "KafkaException"]
"""How a test with a broker fails on a machine that stands still for seconds: it is run once more, and the summary
counts it. What a test has seen to be wrong is not asked again."""

_SLOWEST_FIRST = ("spark", "integration", "docs", "browser", "deploy", "simulation", "property", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no worker is left alone with it at the end."""
    root = Path(__file__).parents[1]
    places: dict[tuple[str, ...], int] = {("tests", part): place for place, part in enumerate(_SLOWEST_FIRST)}
    places["clients", "python"] = len(_SLOWEST_FIRST)
    items.sort(key=lambda item: places.get(item.path.relative_to(root).parts[:2], 0))
    for item in items:
        if item.get_closest_marker("broker"):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=_RAN_OUT_OF_TIME))


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Address of a broker that the whole run shares; never stop it, use names of your own."""
    with broker_of_tests.any_broker() as address:
        yield address


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names that no other test uses, from a prefix."""
    return broker_of_tests.unique


@pytest.fixture
def topic_name() -> str:
    """Name of a topic that does not exist yet."""
    return broker_of_tests.unique("topic")


@pytest.fixture
def own_broker() -> Iterator[LocalBroker]:
    """A running broker for this test only, which may restart or kill it."""
    with broker_of_tests.local_broker() as broker:
        yield broker
