"""The hierarchical timer wheel: its slots are digits of the due time. Pure."""
