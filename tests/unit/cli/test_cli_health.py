"""`retry-sidecar health`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from sidecar import cli


class _Instance(BaseHTTPRequestHandler):
    """Alive and not ready."""

    def do_GET(self) -> None:
        body = b'{"status":"ok","reasons":[]}' if self.path == "/livez" else b'{"reasons":["no broker answers"]}'
        self.send_response(200 if self.path == "/livez" else 503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """Port of an instance that is alive and not ready."""
    server = HTTPServer(("127.0.0.1", 0), _Instance)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_liveness_is_asked_where_the_settings_say_that_it_listens(port: int) -> None:
    result = CliRunner().invoke(cli.main, ["health", "--http-host", "0.0.0.0", "--http-port", str(port)])
    assert (result.exit_code, result.output) == (0, "alive\n")


def test_an_instance_that_is_not_ready_is_exit_status_one_with_the_reason(port: int) -> None:
    result = CliRunner().invoke(cli.main, ["health", "--ready", "--url", f"http://127.0.0.1:{port}"])
    assert result.exit_code == 1
    assert result.output == f"http://127.0.0.1:{port}/readyz answers 503: no broker answers\n"


def test_where_no_sidecar_is_the_exit_status_is_one() -> None:
    result = CliRunner().invoke(cli.main, ["health", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "no sidecar answers at http://127.0.0.1:1" in result.output


def test_an_address_without_a_scheme_is_wrong_usage() -> None:
    result = CliRunner().invoke(cli.main, ["health", "--url", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "must look like http://localhost:8080" in result.output
