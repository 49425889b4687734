"""The streaming query."""
