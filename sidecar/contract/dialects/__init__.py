"""Header dialects: one file each, found by the registry."""
