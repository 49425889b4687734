"""Control records sent to the retry topic, and their outcomes awaited."""
