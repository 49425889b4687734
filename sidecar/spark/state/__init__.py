"""The state of one partition in Spark's state store."""
