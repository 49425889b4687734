"""What the runtime tells: counts and state, metrics, spans."""
