"""An S3-compatible store in a process of its own, which keeps everything in memory."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from sidecar.devbroker.local_broker import free_port
from tests.integration.sidecars import ROOT
from tests.waiting import eventually

BUCKET: Final = "retry"
PYTHON: Final = Path(os.environ.get("SIDECAR_TEST_S3_PYTHON", ROOT / ".venv-s3" / "bin" / "python"))
"""The Python that has the store, in an environment of its own."""
START_S: Final = 60.0
# Its HTTP server and the framework above it each say `100 Continue`, and the second one is the answer to Amazon's SDK.
_SERVER: Final = """
from http.server import BaseHTTPRequestHandler
from moto.server import main
BaseHTTPRequestHandler.handle_expect_100 = lambda _: True
main()
"""


@dataclass(frozen=True, slots=True)
class Store:
    """A store with one bucket."""

    url: str
    log_path: Path

    def options(self) -> list[str]:
        """Return the options of `spark run` by which Spark finds it."""
        conf = {
            "fs.s3a.endpoint": self.url,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": "test",
            "fs.s3a.secret.key": "test",
        }
        return [text for name, value in conf.items() for text in ("--conf", f"spark.hadoop.{name}={value}")]

    def requests(self) -> list[str]:
        """Return the lines of its log, one for each request."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if "HTTP/1.1" in line]

    def keys(self, prefix: str) -> list[str]:
        """Return the names of objects that begin so, at most a thousand."""
        with urlopen(f"{self.url}/{BUCKET}?list-type=2&prefix={quote(prefix)}", timeout=5) as answer:
            return re.findall("<Key>([^<]*)</Key>", answer.read().decode())


@contextmanager
def s3_store(folder: Path) -> Iterator[Store]:
    """Run a store."""
    port, log_path = free_port(), folder / "s3.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [PYTHON, "-c", _SERVER, "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    store = Store(f"http://127.0.0.1:{port}", log_path)
    try:
        eventually(lambda: _made(f"{store.url}/{BUCKET}"), START_S, "the store has a bucket")
        yield store
    finally:
        process.kill()
        process.wait(START_S)


def _made(url: str) -> bool:
    try:
        with urlopen(Request(url, method="PUT"), timeout=5) as answer:
            return bool(answer.status == 200)
    except (HTTPError, URLError, OSError):
        return False
