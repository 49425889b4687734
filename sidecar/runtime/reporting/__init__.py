"""What the runtime reports: counts and state, metrics, spans."""
