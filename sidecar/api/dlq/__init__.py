"""Dead letters over HTTP: counts, a list, single ones, and redrives."""
