"""Commands about messages that wait."""
