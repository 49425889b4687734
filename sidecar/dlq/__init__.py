"""The DLQ: reads and filters dead letters, and sends them to the retry topic again."""
