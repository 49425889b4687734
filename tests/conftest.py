"""Fixtures that more than one part of the suite uses."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from sidecar.devbroker.local_broker import LocalBroker
from sidecar.errors import CommandFailed
from tests import broker as broker_of_tests
from tests.leftovers import Leftovers
from tests.rings import Ring, may_hold, ring_of
from tests.shared_broker import SharedBroker, ask

# How long an input takes to make says more about the machine than about the test.
settings.register_profile("project", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("project")

# A run in the background of a script ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


_ROOT = Path(__file__).parents[1]
_SLOWEST_FIRST = ("spark", "integration", "docs", "browser", "deploy", "simulation", "property", "unit")
_SHARED = pytest.StashKey[SharedBroker]()
_LEFTOVERS = pytest.StashKey[Leftovers]()
_LEFT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of a ring."""
    parser.addoption("--ring", choices=list(Ring), default=Ring.ALL.value, help="how much to run: see tests/rings.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file and no folder without tests of the ring."""
    path = collection_path.relative_to(_ROOT).as_posix() + "/" * collection_path.is_dir()
    return None if may_hold(path, Ring(config.getoption("ring"))) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is in an outer ring; begin with what takes longest, so that no worker ends alone with it."""
    ring = Ring(config.getoption("ring"))
    inside: list[pytest.Item] = []
    outside: list[pytest.Item] = []
    for item in items:
        words = {*getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())}
        fits = ring_of(item.nodeid, words).within(ring)
        (inside if fits else outside).append(item)
    config.hook.pytest_deselected(items=outside)
    places: dict[tuple[str, ...], int] = {("tests", part): place for place, part in enumerate(_SLOWEST_FIRST)}
    places["clients", "python"] = len(_SLOWEST_FIRST)
    items[:] = sorted(inside, key=lambda item: places.get(item.path.relative_to(_ROOT).parts[:2], 0))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to ask for the broker of the run."""
    if _SHARED not in node.config.stash:
        node.config.stash[_SHARED] = SharedBroker()
    node.workerinput["broker"] = node.config.stash[_SHARED].address


def pytest_configure(config: pytest.Config) -> None:
    """Give the run its own folder for temporary files; workers and all that tests start inherit it."""
    if not hasattr(config, "workerinput"):
        config.stash[_LEFTOVERS] = Leftovers()
        # Who ends the run ends what it has started too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the broker of the run; what is left behind then is named, and fails it."""
    if shared := session.config.stash.get(_SHARED, None):
        shared.stop()
    if (leftovers := session.config.stash.get(_LEFTOVERS, None)) and (left := leftovers.find()):
        session.config.stash[_LEFT] = left
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what tests left behind."""
    if left := config.stash.get(_LEFT, None):
        terminalreporter.section("left behind", red=True)
        terminalreporter.write_line("\n".join(left))


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a broker that the whole run shares; never stop it, use names of your own."""
    worker: dict[str, Any] = getattr(request.config, "workerinput", {})
    try:
        if worker:
            yield ask(worker["broker"])
            return
        with broker_of_tests.any_broker() as address:
            yield address
    except CommandFailed as error:
        broker_of_tests.no_broker(str(error))


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
