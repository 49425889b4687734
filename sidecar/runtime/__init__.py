"""The runtime connects the engine to Kafka and to the store: the loop, the commit order, recovery and shutdown."""
