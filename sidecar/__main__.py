"""`python -m sidecar` is `retry-sidecar`."""

from sidecar.cli import main

main(prog_name="retry-sidecar")
