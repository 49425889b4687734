"""Takes over what waits in the state of other retry programs."""
