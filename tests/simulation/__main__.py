"""Run random worlds until time is up, or replay one.

python -m tests.simulation --seconds 60     from a seed of the day on, until one fails
python -m tests.simulation SEED STEPS       one world, with its whole trace
"""

from __future__ import annotations

import argparse
import sys

from sidecar.clock import SystemClock
from tests.simulation.running import run

STEPS = (12, 30, 90, 200)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this world")
    parser.add_argument("steps", type=int, nargs="?", default=90, help="how many things happen in it")
    parser.add_argument("--seconds", type=float, default=60, help="how long to run worlds when no seed is given")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    options = parser.parse_args()
    if options.seed is not None:
        world = run(options.seed, options.steps)
        print(*world.trace, sep="\n")
        return 0
    clock = SystemClock()
    until_s = clock.monotonic_s() + options.seconds
    seed = options.first
    while clock.monotonic_s() < until_s:
        run(seed, STEPS[seed % len(STEPS)])
        seed += 1
    print(f"{seed - options.first} worlds hold; the next seed is {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
