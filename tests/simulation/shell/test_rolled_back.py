"""A broker rolls back the changelog's part of transactions alone: nothing is lost, and nothing comes twice.

In these worlds the origins can be read, all clocks are right, and an instance that recovers reads its input again
before anything else happens to it. In the random worlds anything may hide a delivery from the search, so there what
such a transaction delivered may come twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.contract.control import ControlKind
from sidecar.engine.partition import State
from sidecar.errors import InvariantViolated
from tests.simulation.fakes.logs import Row
from tests.simulation.limits import small_limits
from tests.simulation.mutations import Mutation
from tests.simulation.shell.senders import BILLS, ORDERS
from tests.simulation.shell.story import quiet
from tests.simulation.shell.world import CHANGELOG, INPUT, Mode, World

WORLDS = 60
OF_EACH_CHANGE = 8
"""The others are for the night."""
ROLL_BACKS = 6
READY_S = 90.0
LAST_S = 100.0
SOME_S = 20.0


def live(seed: int, home: Path, *, may_read: bool = True) -> World:
    """Run a world in which that happens several times."""
    trace: list[str] = []
    with small_limits(), quiet() as told:
        world = World(100 * seed + 1, trace, home)
        told.append(world)
        try:
            world.mode = Mode.FAULTY  # nothing is held to the times of a calm world
            world.ledger.forgives = not may_read
            for name in (ORDERS, BILLS):
                world.cluster.topics[name].may_read = may_read
            _begin(world)
            for _ in range(ROLL_BACKS):
                _roll_back(world)
            world.finish()
            for process in world.processes:
                process.start()
            world.wait(LAST_S)  # what is pending though it is out would come
        except Exception as error:
            error.add_note("\n".join(trace[-150:]))
            raise
        finally:
            for process in world.processes:
                process.kill()
    return world


def _begin(world: World) -> None:
    """Each partition has a checkpoint."""
    for number in range(len(world.cluster.topics[INPUT].logs)):
        world.place(world.senders.good(world.timeline.now_ms()), number)
    world.wait(READY_S, lambda: not world.ledger.waiting() and _is_settled(world))


def _is_settled(world: World) -> bool:
    """Return whether every partition runs and has taken in all that was sent."""
    owned = [
        each for process in world.processes if process.loop for each in process.loop._assignment.partitions.values()
    ]
    logs = world.cluster.topics[INPUT].logs
    running = {each.number for each in owned if each.state is State.RUNNING}
    taken = all(world.ledger.taken(number) == log.end for number, log in enumerate(logs))
    return len(running) == len(owned) == len(logs) and taken


def _roll_back(world: World) -> None:
    """Some messages wait, some are overdue, and a transaction that delivers is rolled back in the changelog."""
    rng, cluster = world.rng, world.cluster
    for _ in range(rng.randint(1, 8)):
        world.write(world.senders.good(world.timeline.now_ms()))
    world.wait(rng.choice([0.2, 1.0, 4.0]))
    if rng.random() < 0.4:
        world.write_control(ControlKind.FIRE, b"one")
        for each in world.ledger.sent.values():
            each.is_touched |= ("retry-id", b"one") in each.headers
    if rng.random() < 0.5:
        world.write(world.senders.good(world.timeline.now_ms()))
    _plant(world)
    cluster.markers_wait = True
    number = rng.randrange(len(cluster.topics[CHANGELOG].logs))
    world.wait(SOME_S, lambda: cluster.take_back_part(CHANGELOG, number) > 0)
    cluster.markers_wait = False
    process = rng.choice(world.processes)
    if rng.random() < 0.5:
        process.kill()
        if rng.random() < 0.5:
            process.disk.wipe()
        process.start()
    world.place(world.senders.good(world.timeline.now_ms()), number)  # its next transaction is fenced
    world.wait(READY_S, lambda: _is_settled(world))
    assert _is_settled(world), "it does not recover"


def _plant(world: World) -> None:
    """Somebody copies records between origins before they were delivered: ids of what waits, in the other origin."""
    for each in world.ledger.waiting():
        other = BILLS if each.origin == ORDERS else ORDERS
        timer = f"{each.partition}-{each.offset}-{each.due_ms}".encode()
        log = world.rng.choice(world.cluster.topics[other].logs)
        log.append([Row(None, b"copied", [("retry-timer-id", timer)])], world.timeline.now_ms(), None)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=() if seed < OF_EACH_CHANGE else pytest.mark.slow) for seed in range(WORLDS)],
)
def test_what_such_transactions_delivered_does_not_come_twice(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path)


def test_the_worlds_have_such_transactions_and_searches_that_find_something(tmp_path: Path) -> None:
    worlds = [live(seed, tmp_path / str(seed)) for seed in range(4)]
    said = [line for world in worlds for line in world.trace if "delivered_before" in line]
    assert len(said) > len(worlds)


def test_without_the_permission_they_come_twice(tmp_path: Path) -> None:
    worlds = [live(seed, tmp_path / str(seed), may_read=False) for seed in range(4)]
    assert any("origins_not_searched" in line for world in worlds for line in world.trace)
    assert any(len(each.out) > 1 for world in worlds for each in world.ledger.sent.values())


@pytest.mark.parametrize(
    "mistake",
    [
        Mutation(
            "the search begins one record too late",
            "kafka.origin_search:Search._search",
            "offset if (offset := at.get(each, -1)) >= 0",
            "offset + 1 if (offset := at.get(each, -1)) >= 0",
        ),
        Mutation(
            "a copy in another origin counts",
            "engine.delivered:sift",
            "origin_of(entry, head(entry)) == each.origin",
            "True",
        ),
        Mutation(
            "what is read again is delivered again",
            "engine.standing:Standing.meets_arrival",
            "(offset, origin) in self.known.again",
            "False",
        ),
        Mutation(
            "origins of what is read again are not searched", "kafka.origin_search:Search.run", "if again:", "if False:"
        ),
        Mutation(
            "nothing is searched for",
            "runtime.partitions.recovery:Recovery._lacks_to",
            "if lost else None",
            "if False else None",
        ),
    ],
    ids=lambda mistake: mistake.name,
)
def test_mistakes_of_the_search_are_found(mistake: Mutation, tmp_path: Path) -> None:
    with mistake.applied():
        assert any(_fails(seed, tmp_path / str(seed)) for seed in range(WORLDS))


def _fails(seed: int, home: Path) -> bool:
    try:
        live(seed, home)
    except (AssertionError, InvariantViolated):
        return True
    return False
