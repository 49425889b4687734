"""The engine decides: what to store, fire, defer and dead-letter. Pure: it acts through the ports and on plain data."""
