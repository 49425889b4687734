"""The runtime wires: one loop, the commit order, reset and shutdown."""
