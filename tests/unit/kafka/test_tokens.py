"""Tokens of a function: shared by the clients, renewed in time, and what its failures cost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from structlog.testing import capture_logs

from sidecar.errors import BrokerUnavailable, CommandFailed, SettingsInvalid
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin
from sidecar.kafka.errors import failed
from sidecar.kafka.tokens import AGAIN_S, CALLBACK, LOG_EVERY_S, Tokens, made, require_token, tokens_of
from sidecar.settings import Settings
from tests.clocks import HandClock

LIFETIME_S = 100.0
MODULE = "acme_tokens_of_the_tests"


class Function:
    """Gives numbered tokens, unless it has something to raise or to return in their place."""

    def __init__(self, clock: HandClock) -> None:
        self.calls: list[str] = []
        self.instead: Any = None
        self._clock = clock

    def __call__(self, config: str) -> Any:
        self.calls.append(config)
        if isinstance(self.instead, BaseException):
            raise self.instead
        if self.instead is not None:
            return self.instead
        return f"token {len(self.calls)}", self._clock.wall_ms() / 1000 + LIFETIME_S


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def function(clock: HandClock) -> Function:
    return Function(clock)


@pytest.fixture
def tokens(function: Function, clock: HandClock) -> Tokens:
    return Tokens(function, clock)


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module that OAUTH_CALLBACK can name."""
    made = ModuleType(MODULE)
    sys.modules[MODULE] = made
    yield made
    del sys.modules[MODULE]


def login(function: str) -> Settings:
    return Settings(
        bootstrap_servers="127.0.0.1:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        oauth_callback=f"{MODULE}:{function}",
        client={"sasl.oauthbearer.config": "region=here"},
    )


def test_clients_share_a_token_until_half_of_its_lifetime_is_over(
    tokens: Tokens, function: Function, clock: HandClock
) -> None:
    first = tokens("region=here")
    assert (first.text, first.principal, first.extensions) == ("token 1", "", {})
    clock.now_s += LIFETIME_S / 2 - 1
    assert tokens(None) is first
    clock.now_s += 2
    assert tokens(None).text == "token 2"
    assert function.calls == ["region=here", ""]


def test_principal_and_extensions_are_passed_on(tokens: Tokens, function: Function, clock: HandClock) -> None:
    expires_s = clock.wall_ms() / 1000 + 9
    function.instead = ("text", expires_s, "me", {"traceId": "1"})
    assert tokens(None) == ("text", expires_s, "me", {"traceId": "1"})


def test_a_failure_is_not_repeated_at_once_and_shown_only_when_no_token_is_left(
    tokens: Tokens, function: Function, clock: HandClock
) -> None:
    tokens(None)
    function.instead = OSError("token server is away")
    clock.now_s += LIFETIME_S / 2 + 1
    for _ in range(3):
        with pytest.raises(CommandFailed, match="OSError in the function"):
            tokens(None)
    assert len(function.calls) == 2
    assert tokens.blocker() is None, "the first token is still valid"
    clock.now_s += LIFETIME_S / 2
    assert (tokens.blocker() or "").startswith(
        "the login has no valid token: OSError in the function: the log has its text"
    )

    function.instead = None
    assert tokens(None).text == "token 3"
    assert tokens.blocker() is None


def test_without_a_failure_nothing_blocks(tokens: Tokens) -> None:
    assert tokens.blocker() is None


def test_the_words_of_a_failure_go_to_the_log_and_to_nobody_who_asks_for_the_health(
    tokens: Tokens, function: Function
) -> None:
    """As the text of a request that failed: it often has the request in it."""
    function.instead = OSError("POST https://idp.example/token?client_secret=hunter-2 failed")
    with capture_logs() as logged, pytest.raises(CommandFailed) as failed:
        tokens(None)
    assert "hunter-2" in logged[0]["reason"]
    assert "hunter-2" not in str(failed.value)
    assert "hunter-2" not in (tokens.blocker() or "")


def test_a_failure_is_logged_when_it_changes_and_else_once_a_minute(
    tokens: Tokens, function: Function, clock: HandClock
) -> None:
    function.instead = OSError("away")
    with capture_logs() as logged:
        for _ in range(20):
            clock.now_s += AGAIN_S
            with pytest.raises(CommandFailed):
                tokens(None)
        assert len(logged) == 1 + 19 * AGAIN_S // LOG_EVERY_S
        function.instead = OSError("refused\x1b[2J")
        clock.now_s += AGAIN_S
        with pytest.raises(CommandFailed):
            tokens(None)
    assert logged[-1]["reason"] == r"OSError: refused\x1b[2J"
    assert logged[-1]["event"] == "token_not_renewed"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("a token", "it must return (token, expiry in epoch seconds)"),
        (("a token",), "it must return (token, expiry in epoch seconds)"),
        (("a", 1.0, "b", {}, "c"), "it must return (token, expiry in epoch seconds)"),
        (("", 9e9), "the token must be a text that is not empty"),
        ((b"secret", 9e9), "the token must be a text that is not empty"),
        (("secret", "soon"), "the expiry must be a number of epoch seconds"),
        (("secret", float("inf")), "the expiry must be a number of epoch seconds"),
        (("secret", 1.8e12), "the expiry must be in epoch seconds, and 1800000000000 is in milliseconds"),
        (("secret", -60.0), "the token expired"),
        (("secret", 9e9, 1), "the principal must be a text, and the extensions a dict"),
        (("secret", 9e9, "me", "x"), "the principal must be a text, and the extensions a dict"),
    ],
)
def test_an_answer_that_is_no_token_is_refused_without_showing_it(
    answer: Any, words: str, tokens: Tokens, function: Function
) -> None:
    function.instead = answer
    with pytest.raises(CommandFailed) as refused:
        tokens(None)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_function_that_does_not_return_is_not_called_a_second_time(clock: HandClock) -> None:
    returns = threading.Event()
    calls: list[str] = []

    def hangs(config: str) -> tuple[str, float]:
        calls.append(config)
        returns.wait()
        return "late", clock.wall_ms() / 1000 + LIFETIME_S

    tokens = Tokens(hangs, clock, call_s=0.01)
    try:
        with pytest.raises(CommandFailed, match=r"did not return within 0\.01 s"):
            tokens(None)
        clock.now_s += AGAIN_S
        with pytest.raises(CommandFailed, match="an earlier call has not returned"):
            tokens(None)
        assert calls == [""]
    finally:
        returns.set()


def test_a_call_that_has_answered_does_not_hinder_the_next_one_while_its_thread_ends(
    tokens: Tokens, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    class Lingering(threading.Thread):
        def run(self) -> None:
            super().run()
            ends.wait()

    monkeypatch.setattr(threading, "Thread", Lingering)
    try:
        assert tokens(None).text == "token 1"
        clock.now_s += LIFETIME_S
        assert tokens(None).text == "token 2"
    finally:
        ends.set()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module_of_acme:token", "cannot be imported: ModuleNotFoundError"),
        ("sidecar.kafka.tokens:missing", "cannot be imported: AttributeError"),
        ("sidecar.kafka.tokens:CALL_S", "is not allowed: it must be a function"),
    ],
)
def test_a_name_without_a_function_is_refused(name: str, words: str) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        config.validate_client_properties(Settings(oauth_callback=name))
    (line,) = refused.value.problems
    assert line.startswith(f"OAUTH_CALLBACK: {name!r} {words}")


@pytest.mark.parametrize(
    "configure",
    [
        config.common,
        config.input_consumer,
        config.changelog_reader,
        config.status_reader,
        config.committed_reader,
        config.status_producer,
        config.retry_producer,
        config.admin,
        lambda settings: config.transactional_producer(settings, "id"),
        lambda settings: config.dead_letter_reader(settings, "group"),
    ],
)
def test_every_client_has_the_same_tokens(configure: Callable[[Settings], config.Config], module: ModuleType) -> None:
    module.every = lambda _: ("token", 9e9)  # type: ignore[attr-defined]  # a module of the test
    settings = login("every")
    assert configure(settings)["oauth_cb"] is tokens_of(settings)
    assert "oauth_cb" not in configure(Settings())


def test_the_client_library_takes_the_tokens(module: ModuleType) -> None:
    given: list[str] = []

    def token(config: str) -> tuple[str, float]:
        given.append(config)
        return "token", 9e9

    module.takes = token  # type: ignore[attr-defined]  # a module of the test
    settings = login("takes")
    config.validate_client_properties(settings)
    assert given == [], "a check needs no token"
    Consumer(config.input_consumer(settings), logger=config.quiet_logger()).close()
    Producer(config.retry_producer(settings), logger=config.quiet_logger()).flush(0)
    Admin(settings).poll(0)
    assert given == ["region=here"]


def test_a_command_without_a_token_says_why_before_it_makes_a_client(module: ModuleType) -> None:
    def refuse(_: str) -> None:
        raise OSError("token server is away")

    module.refuses = refuse  # type: ignore[attr-defined]  # a module of the test
    with pytest.raises(BrokerUnavailable, match=rf"OAUTH_CALLBACK {MODULE}:refuses gives no token: OSError"):
        Admin(login("refuses"))
    require_token(Settings())


def test_a_client_is_not_made_without_a_token(tokens: Tokens, function: Function) -> None:
    function.instead = OSError("token server is away")
    asked: list[object] = []
    with pytest.raises(KafkaException) as refused:
        made(asked.append, {CALLBACK: tokens})
    error = failed(refused.value.args[0])
    assert (asked, error.away) == ([], True)
    assert "the login has no token: OSError in the function" in str(error)


def test_the_token_of_msk_has_its_region_and_an_expiry_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer", reason="the extra msk is not installed: pip install -e '.[msk]'")
    from sidecar.kafka import msk_iam

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-the-tests")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ValueError, match="set AWS_REGION"):
        msk_iam.token("")
    assert Tokens(msk_iam.token, HandClock())("region=us-east-1").expires_s < 1e11
