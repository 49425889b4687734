"""One suite for each port: it runs on the fake of tests/simulation and on the real adapter with a real broker."""
