"""The Spark engine on a standalone cluster, whose parts fail."""
