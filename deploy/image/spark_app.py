"""The application that spark-submit starts in the image: its arguments are those of `retry-sidecar`."""

from sidecar.cli import main

main(prog_name="retry-sidecar")
