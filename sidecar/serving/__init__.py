"""What answers HTTP requests: the group's view, control calls, local messages, peers, the server."""
