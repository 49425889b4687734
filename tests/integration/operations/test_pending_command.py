"""`retry-sidecar pending` against the real HTTP server, and against things that are no sidecar."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from sidecar import cli
from sidecar.cli.messages import pending
from sidecar.cli.messages.pending import picture
from sidecar.serving.server import Server
from tests.unit.api.test_api import Snapshots
from tests.unit.api_stage import Client
from tests.unit.engine.test_view import view_of

STOP_S = 5.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "_TIMEOUT_S", 60.0)


@pytest.fixture
def source() -> Snapshots:
    return Snapshots([view_of([1_800_000_000_000, 1_800_000_001_000])])


@pytest.fixture
def sidecar(source: Snapshots) -> Iterator[Server]:
    with Client(source) as client:
        server = Server(client.app, host="127.0.0.1", port=0)
        server.start()
        yield server
        server.stop(STOP_S)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["pending", *arguments])


def test_it_shows_what_waits_by_origin_and_partition(sidecar: Server) -> None:
    result = _run("--http-port", str(sidecar.port))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("2 pending, ")
    assert re.search(r"^orders +2\b", result.stdout, re.MULTILINE)
    assert "2027-01-15 08:00:00 UTC" in result.stdout


@pytest.mark.parametrize("state", ["paused", "stopped"])
def test_it_says_that_the_group_fires_nothing(sidecar: Server, source: Snapshots, state: str) -> None:
    source.shown = [replace(each, closed_origins={"*": (state, 1)}) for each in source.shown]
    result = _run("--http-port", str(sidecar.port))
    assert f"the group is {state}: nothing fires until `retry-sidecar resume '*'`" in result.stdout


def test_json_is_the_answer_as_it_came(sidecar: Server) -> None:
    result = _run("--url", f"http://127.0.0.1:{sidecar.port}/", "--json")
    answer = json.loads(result.stdout)
    assert (answer["total"], answer["by_origin"]) == (2, {"orders": 2})


def test_watching_goes_on_until_it_is_interrupted(sidecar: Server) -> None:
    command = [sys.executable, "-m", "sidecar", "pending", "--watch", "--json", "--interval", "0.1"]
    process = subprocess.Popen(
        [*command, "--http-port", str(sidecar.port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline())["total"] for _ in range(3)]
        process.send_signal(2)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert looks == [2, 2, 2]
    assert (process.returncode, said) == (0, "")


def test_where_nothing_listens_it_says_what_to_start() -> None:
    result = _run("--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr.startswith("no sidecar answers at http://127.0.0.1:1 (")
    assert "Connection refused" in result.stderr
    assert "start `retry-sidecar run`" in result.stderr


@pytest.fixture
def stranger() -> Iterator[str]:
    """Address of a server that is no sidecar: it answers the path with its own status and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = ANSWERS[self.path]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


ANSWERS = {
    "/page/pending": (200, b"<html>"),
    "/list/pending": (200, b"[]"),
    "/refused/pending": (401, b'{"error_code": 401, "message": "a token is needed"}'),
    "/broken/pending": (500, b"oops"),
}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/page", "is not JSON: the server there is not a sidecar"),
        ("/list", "has no total: the server there is not a sidecar"),
        ("/refused", "answers 401: a token is needed"),
        ("/broken", "answers 500: Internal Server Error"),
    ],
)
def test_an_answer_that_is_none_is_named(stranger: str, path: str, said: str) -> None:
    result = _run("--url", stranger + path)
    assert result.exit_code == 1
    assert said in result.stderr


def test_an_address_of_another_kind_is_a_usage_error() -> None:
    result = _run("--url", "file:///etc/passwd")
    assert result.exit_code == 2
    assert "must look like http://localhost:8080" in result.stderr


def test_the_picture_bounds_the_origins_and_never_reads_names_as_markup() -> None:
    answer = {
        "total": 1275,
        "by_origin": {f"[red]topic-{n}": n for n in range(1, 51)},
        "due_within": {"5s": 1, "later": 2},
        "overdue": 3,
        "next_due_ms": None,
        "complete": False,
        "partitions": [
            {"partition": 0, "state": "restoring", "owner": None, "pending": 9, "watermark_ms": 0, "restored": 0.5}
        ],
    }
    written = io.StringIO()
    Console(width=200, file=written).print(picture(answer, 60_000))
    text = written.getvalue()
    assert "1,275 pending, 3 overdue  (not complete" in text
    assert "[red]topic-50" in text
    assert "[red]topic-30 " not in text
    assert re.search(r"30 more +465", text)
    assert re.search(r"0 +restoring +none +9 +1970-01-01 00:00:00 UTC \(60\.0 s ago\) +50%", text)
