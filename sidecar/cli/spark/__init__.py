"""`retry-sidecar spark …`."""
