"""From one engine to the other."""
