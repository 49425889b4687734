"""Reads Kafka for Spark: a data source in Python, for the streaming query and for batch jobs."""
