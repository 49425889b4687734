"""The HTTP server and what it serves: the group's view, control calls, local messages, other instances."""
