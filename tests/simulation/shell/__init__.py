"""Random worlds around the whole runtime: the real loop of one to four processes on the cluster of `fakes`.

`python -m tests.simulation.shell` runs them for as long as you like; `python -m tests.simulation.shell SEED` replays
one.
"""
