"""Posting to a webhook: a real server that accepts, refuses, redirects, hangs and dawdles."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.devbroker.local_broker import free_port
from sidecar.notify.webhook import Attempt, post
from tests.unit.notify.server import TOKEN, WAIT_S, Answer, Hook, webhook


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with webhook() as made:
        yield made


def test_a_body_is_posted_as_json_and_accepted(hook: Hook) -> None:
    assert post(hook.url, b'{"count": 3}', WAIT_S) == Attempt()
    (request,) = hook.requests
    assert (request.path, request.body) == (f"/hook/{TOKEN}", {"count": 3})
    assert request.headers["content-type"] == "application/json"


def test_a_user_and_a_password_in_the_url_are_sent_as_http_basic(hook: Hook) -> None:
    assert post(hook.url.replace("//", "//me:secret@"), b"{}", WAIT_S) == Attempt()
    assert hook.requests[0].headers["authorization"] == "Basic bWU6c2VjcmV0"


@pytest.mark.parametrize(
    ("answer", "attempt"),
    [
        (Answer(500), Attempt("HTTP 500")),
        (Answer(503, {"retry-after": "7"}), Attempt("HTTP 503", retry_after_s=7)),
        (Answer(429, {"retry-after": "86400"}), Attempt("HTTP 429", retry_after_s=60)),
        (Answer(429, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}), Attempt("HTTP 429")),
        (Answer(404), Attempt("HTTP 404")),
        (Answer(302, {"location": "/elsewhere"}), Attempt("HTTP 302")),
    ],
)
def test_an_answer_that_refuses_says_how_long_to_wait(hook: Hook, answer: Answer, attempt: Attempt) -> None:
    hook.answers.put(answer)
    assert post(hook.url, b"{}", WAIT_S) == attempt
    assert len(hook.requests) == 1, "a redirect is not followed"


@pytest.mark.parametrize("answer", [Answer(None), Answer(drips=True)], ids=["hangs", "drips"])
def test_an_answer_that_does_not_end_is_given_up_in_time(hook: Hook, answer: Answer) -> None:
    hook.answers.put(answer)
    assert post(hook.url, b"{}", 0.5) == Attempt("no answer within 0.5 s")


def test_a_server_that_is_not_there_is_tried_again() -> None:
    attempt = post(f"http://127.0.0.1:{free_port()}/{TOKEN}", b"{}", WAIT_S)
    assert attempt.error.startswith("ConnectError")
    assert "127.0.0.1" not in attempt.error


def test_a_url_that_the_library_refuses_is_not_shown() -> None:
    attempt = post(f"ftp://127.0.0.1/{TOKEN}", b"{}", WAIT_S)
    assert attempt.error
    assert TOKEN not in attempt.error


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl in the PATH: apt-get install openssl")
def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    path = str(tmp_path / "server.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command.split(), *subject, "-keyout", path, "-out", path + ".crt"], check=True, capture_output=True
    )
    with Path(path).open("a", encoding="ascii") as file:
        file.write(Path(path + ".crt").read_text(encoding="ascii"))
    with webhook(path) as hook:
        attempt = post(hook.url, b"{}", WAIT_S)
    assert "SSLCertVerificationError" in attempt.error
    assert hook.requests == []


def test_no_line_of_any_library_has_the_url(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hook.answers.put(Answer(500))
    post(hook.url, b"{}", WAIT_S)
    assert TOKEN not in caplog.text
