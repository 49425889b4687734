"""`retry-sidecar dlq …`."""
