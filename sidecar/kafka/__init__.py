"""Everything that speaks to Kafka: clients, topics, and a local broker for demo and tests."""
