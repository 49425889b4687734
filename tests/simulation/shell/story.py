"""The events of a world, from its seed to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from tests.simulation.limits import small_limits, small_runtime_limits
from tests.simulation.shell import faults, operators
from tests.simulation.shell.traits import traits_of
from tests.simulation.shell.world import Act, Mode, World

ACTS: Final = 55
ROLL_BACKS_AT: Final = 2
"""In every fourth world brokers roll back one partition of a transaction."""


def _go_round(world: World) -> None:
    world.rounds(len(world.processes) * world.rng.choice([1, 3, 10, 30]))


ALL: Final = (
    Act(30, _go_round, calm=True),
    Act(12, World.send_good, calm=True),
    Act(14, World.send_hostile, calm=True),
    *operators.ACTS,
    *faults.ACTS,
)


@contextmanager
def quiet() -> Iterator[list[World]]:
    """Keep the log of the program out of the output; it goes to the trace of a world that is handed in."""
    told: list[World] = []

    def drop(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        for world in told:
            name = next((each.name for each in world.processes if each.is_acting), "")
            world.say("   ", name, event.pop("event", ""), *(f"{name}={value}" for name, value in event.items()))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[drop], cache_logger_on_first_use=False)
    try:
        yield told
    finally:
        structlog.configure(**before)


def _slow_story(world: World) -> None:
    """Many messages on a slow link: what does not fit into one transaction in time is done in several."""
    rng = world.rng
    for process in world.processes:
        process.link.bytes_per_s = rng.choice([4_000, 10_000])
    for _ in range(rng.choice([100, 250])):
        world.write(world.senders.good(world.timeline.now_ms()))
    world.rounds(200)


def run(seed: int, *, loud: bool = False) -> World:
    """Run one world to its end. What it raises carries the trace as notes."""
    world: World | None = None
    lines: list[str] = []
    traits = traits_of(seed)
    with (
        small_limits(),
        small_runtime_limits(is_rich=traits.is_rich, small_buffers=traits.has_small_buffers),
        quiet() as told,
        TemporaryDirectory(prefix="world-") as home,
    ):
        try:
            world = World(seed, lines, Path(home))
            if loud:
                told.append(world)
            mine = (*ALL, faults.ROLL_BACKS) if seed % 4 == ROLL_BACKS_AT else ALL
            mine = (*mine, *operators.RICH, *faults.RICH) if traits.is_rich else mine
            acts = [each for each in mine if each.calm or world.mode is Mode.FAULTY]
            weights = [each.weight for each in acts]
            if world.mode is Mode.SLOW:
                _slow_story(world)
            for _ in range(ACTS if world.mode is not Mode.SLOW else 0):
                (act,) = world.rng.choices(acts, weights)
                act.run(world)
            world.finish()
        except Exception as error:
            error.add_note("\n".join(lines[-150:]))
            error.add_note(f"replay: .venv/bin/python -m tests.simulation.shell {seed}")
            raise
        finally:
            for process in world.processes if world else ():
                process.kill()
    return world
