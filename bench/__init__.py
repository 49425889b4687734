"""Measures the sidecar on this machine, as ratios to a plain transactional relay in the same run."""
