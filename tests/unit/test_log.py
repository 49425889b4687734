"""Log lines: two forms, one handler, no secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from sidecar import log
from sidecar.api.connect.levels import Levels


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    logging.getLogger(log.LIBRDKAFKA).setLevel(logging.NOTSET)
    structlog.reset_defaults()


def test_a_json_line_holds_event_level_time_and_facts() -> None:
    stream = io.StringIO()
    log.configure(form="json", stream=stream)
    structlog.get_logger("sidecar.x").info("partition_restored", partition=3)
    event = json.loads(stream.getvalue())
    assert (event["event"], event["level"], event["logger"]) == ("partition_restored", "info", "sidecar.x")
    assert event["partition"] == 3
    assert event["timestamp"].endswith("Z")


def test_a_console_line_is_one_line_for_people() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    structlog.get_logger("sidecar.x").warning("origin_closed", topic="orders")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert "origin_closed" in line
    assert "topic=orders" in line


def test_lines_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    log.configure(level="warning", stream=stream)
    structlog.get_logger("sidecar.x").info("nothing_said")
    logging.getLogger("uvicorn").info("nothing said")
    assert stream.getvalue() == ""


def test_requests_to_other_instances_leave_no_line() -> None:
    stream = io.StringIO()
    log.configure(level="debug", stream=stream)
    logging.getLogger("httpx").info("HTTP Request: GET http://127.0.0.1:8080/pending")
    logging.getLogger("httpcore.http11").debug("send_request_headers.started")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("name", ["root", "httpx", "httpcore", "httpcore.http11"])
def test_no_level_brings_back_lines_with_the_address_of_the_webhook(name: str) -> None:
    stream = io.StringIO()
    log.configure(level="warning", stream=stream)
    levels = Levels(lambda: 0)
    try:
        levels.set(name, "TRACE")
        logging.getLogger("httpx").info("HTTP Request: POST https://HOOKS.example:443/a%2Fsecret")
        logging.getLogger("httpcore.http11").debug("send_request_headers.started")
        logging.getLogger("httpcore.connection").warning("connect_tcp.failed")
        assert stream.getvalue() == ""
    finally:
        levels.set(name, "WARN")


def test_a_logger_made_before_the_set_up_follows_it() -> None:
    logger = structlog.get_logger("sidecar.x")
    first, second = io.StringIO(), io.StringIO()
    log.configure(stream=first)
    logger.info("one_said")
    log.configure(stream=second)
    logger.info("two_said")
    assert "one_said" in first.getvalue()
    assert "two_said" in second.getvalue()
    assert "two_said" not in first.getvalue()


def test_lines_of_the_kafka_library_get_an_event_name_and_a_level_of_their_own() -> None:
    stream = io.StringIO()
    log.configure(level="debug", form="json", librdkafka_level="error", stream=stream)
    log.librdkafka_logger().warning("FAIL [%s] left out", "thrd:x")
    log.librdkafka_logger().error("FAIL [%s] connect failed", "thrd:x")
    event = json.loads(stream.getvalue())
    assert event["event"] == "client_logged"
    assert event["text"] == "FAIL [thrd:x] connect failed"


def test_lines_of_the_kafka_library_are_limited_by_kind_and_those_left_out_are_counted() -> None:
    stream = io.StringIO()
    log.configure(form="json", stream=stream)
    logger = log.librdkafka_logger()

    def say(text: str, at_s: float) -> None:
        line = logging.LogRecord(logger.name, logging.ERROR, "", 0, text, (), None)
        line.created = at_s
        logger.handle(line)

    for number in range(4_200):
        say(f"FAIL [client#{number}] refused", number / 100)
    say("GETPID [client#1] no answer", 42.0)
    say("FAIL [client#1] refused", log.CLIENT_LINES_WITHIN_S)
    said = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["text"].split()[0] for line in said] == ["FAIL"] * log.CLIENT_LINES_MAX + ["GETPID", "FAIL"]
    assert [line.get("left_out") for line in said[-2:]] == [None, 4_200 - log.CLIENT_LINES_MAX]


def test_debug_lines_of_the_kafka_library_are_not_limited() -> None:
    stream = io.StringIO()
    log.configure(level="debug", librdkafka_level="debug", form="json", stream=stream)
    for _ in range(100):
        log.librdkafka_logger().debug("BROKER [client#1] up")
    assert stream.getvalue().count("\n") == 100


def test_the_memory_for_limiting_is_bounded() -> None:
    stream = io.StringIO()
    log.configure(form="json", stream=stream)
    for number in range(10 * log.CLIENT_KINDS_MAX):
        log.librdkafka_logger().error("KIND%d [client#1] once", number)
    assert stream.getvalue().count("\n") == 10 * log.CLIENT_KINDS_MAX
    (limit,) = log.librdkafka_logger().filters
    assert isinstance(limit, log.ClientLines)
    assert len(limit._kinds) <= log.CLIENT_KINDS_MAX


@pytest.mark.parametrize("form", ["json", "console"])
def test_tracebacks_leave_local_variables_out(form: str) -> None:
    stream = io.StringIO()
    log.configure(form=form, stream=stream)
    payload = "x".join(["payload"] * 2)
    try:
        raise ValueError(len(payload))
    except ValueError:
        structlog.get_logger("sidecar.x").exception("record_refused")
    assert "ValueError" in stream.getvalue()
    assert payload not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("secret", ["hunter2", 'hun"ter\\2', "hun'ter2", "hünter2"])
def test_secrets_are_masked_wherever_they_turn_up(form: str, secret: str) -> None:
    stream = io.StringIO()
    log.configure(form=form, secrets=[secret, ""], stream=stream)
    logger = structlog.get_logger("sidecar.x")
    logger.info("login_tried", password=secret, config={"sasl.password": secret}, text=f"with {secret} inside")
    log.librdkafka_logger().warning("said %s", secret)
    try:
        raise ValueError(f"refused {secret}")
    except ValueError:
        logger.exception("login_failed")
    written = stream.getvalue()
    assert "login_failed" in written
    assert "ValueError" in written
    assert written.count("***") >= 5
    assert "ter2" not in written
    assert "ter\\" not in written


def test_on_the_console_nothing_that_others_sent_steers_the_terminal() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    hostile = "a\x1b[2J\x9b31m\r\n2026-01-01 forged\u202e"
    logger = structlog.get_logger("test")
    logger.warning("origin_closed", origin=hostile, several=[hostile])
    logging.getLogger(log.LIBRDKAFKA).warning("%s", hostile)
    try:
        raise ValueError(hostile)
    except ValueError:
        logger.exception("loop_failed")
    written = stream.getvalue()
    assert not any(each in written for each in "\x1b\x9b\r\u202e")
    quoted = r"'a\x1b[2J\x9b31m\r\n2026-01-01 forged\u202e'"
    assert f"origin={quoted} several=[{quoted}]" in written
    assert f"text={quoted}" in written
    assert "Traceback (most recent call last):\n" in written
