"""Run random worlds of the whole runtime, or replay one.

python -m tests.simulation.shell --worlds 10000   many worlds, each from a seed of its own
python -m tests.simulation.shell SEED             one world, with its whole trace
python -m tests.simulation.shell --defect NAME    the first of many worlds that finds a defect of mutations.py
"""

from __future__ import annotations

import argparse
import sys

from tests.simulation.shell.mutations import DEFECTS, first_failure
from tests.simulation.shell.story import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.shell", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this world")
    parser.add_argument("--worlds", type=int, default=1_000, help="how many, when no seed is given")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--defect", choices=[each.mutation.name for each in DEFECTS], help="make it, and find it")
    options = parser.parse_args()
    if options.seed is not None:
        world = run(options.seed, loud=True)
        print(*world.trace, sep="\n")
        return 0
    seeds = range(options.first, options.first + options.worlds)
    if options.defect is not None:
        (defect,) = (each for each in DEFECTS if each.mutation.name == options.defect)
        with defect.made():
            failure = first_failure(seeds)
        print("not found" if failure is None else f"{failure!r:.200}\n{failure.__notes__[-1]}")
        return 1 if failure is None else 0
    commits = fired = dead = 0
    for seed in seeds:
        ledger = run(seed).ledger
        commits, fired, dead = commits + ledger.commits, fired + ledger.fired, dead + ledger.dead
    print(f"{options.worlds} worlds hold: {commits} transactions, {fired} fired, {dead} dead letters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
