"""Commands about pending messages."""
