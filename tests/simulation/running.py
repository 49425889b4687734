"""Runs one world to its end."""

from __future__ import annotations

from tests.simulation.limits import small_limits
from tests.simulation.world import World


def run(seed: int, steps: int, *, apply_before_commit: bool = False) -> World:
    """Run one world to its end. What it raises carries the trace as notes."""
    world = None
    with small_limits():
        try:
            world = World(seed, apply_before_commit=apply_before_commit)
            for _ in range(steps):
                world.act()
            world.finish()
        except Exception as error:
            trace = world.trace[-25:] if world else []
            error.add_note("\n".join(map(str, trace)))
            error.add_note(f"replay: .venv/bin/python -m tests.simulation {seed} {steps}")
            raise
    return world
