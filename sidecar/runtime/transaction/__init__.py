"""One transaction: its commit order, its size, and what its failures teach."""
