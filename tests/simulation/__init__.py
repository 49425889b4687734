"""Random worlds around the engine: seeded, with an independent ledger after every commit.

`python -m tests.simulation` runs them for as long as you like; `python -m tests.simulation SEED STEPS` replays one.
"""
