"""retry-sidecar: reads one shared Kafka retry topic and fires each message back to its origin when it is due."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("retry-sidecar")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
