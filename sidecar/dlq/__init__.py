"""The DLQ: read, filtered, and sent to the retry topic again."""
