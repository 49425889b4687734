"""Downloads single jars from Maven Central, or from the mirror that the user's jgo settings name."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import requests
from jgo.config import GlobalSettings
from jgo.maven import MavenContext, PythonResolver

_TIMEOUT_S = 60
# jgo reports a checksum that differs as a warning on its own logger; the SHA-256 of the lock file decides here.
logging.getLogger("jgo").setLevel(logging.ERROR)


class JarDownload:
    """A connection to the repositories; used by several threads at once.

    Args:
        folder: The folder for the jars, laid out as a Maven repository.
        received: Called with the number of bytes of each part that arrives.
    """

    def __init__(self, folder: Path, received: Callable[[int], None]) -> None:
        @contextlib.contextmanager
        def count(_file: str, _bytes_total: int) -> Iterator[Callable[[int], None]]:
            yield received

        self._maven = MavenContext(
            resolver=PythonResolver(progress_callback=count),
            repo_cache=folder,
            # None means Maven Central; a company names its mirror in the user's settings.
            remote_repos=GlobalSettings.load().repositories or None,
            timeout=_TIMEOUT_S,
        )

    def fetch(self, coordinate: str) -> str:
        """Download one jar; return the error, or an empty string."""
        try:
            self._maven.create_dependency(coordinate).artifact.resolve()
        except (requests.RequestException, RuntimeError) as error:
            return str(error)
        return ""
