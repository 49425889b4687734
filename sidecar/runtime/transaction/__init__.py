"""One transaction: its commit order, its size, and the handling of its failures."""
