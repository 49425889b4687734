"""The handover of the state between the engines."""
