"""A Kafka cluster in memory, and the ports of the runtime on top of it: one seeded Random, one clock, no threads.

The contract suites in tests/contract hold these fakes to what the real adapters do with a real broker.
"""
