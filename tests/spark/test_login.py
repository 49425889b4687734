"""A login with OAUTH_CALLBACK: driver and executors read and write with the tokens of the function."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.devbroker.local_broker import free_port
from tests.broker import local_broker
from tests.integration.messages import Given, native, send
from tests.integration.operations.test_oauth_login import LIFETIME_S, LOGIN
from tests.integration.sidecars import Sidecars, set_stage
from tests.integration.token_server import login_settings, token_server
from tests.spark.queries import WAIT_S, command, deliveries
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def brokers() -> Iterator[tuple[str, str]]:
    """Two addresses of one broker: without a login, and with OAUTHBEARER."""
    port = free_port()
    with local_broker(properties=LOGIN, also_port=port) as broker:
        yield broker.bootstrap_servers, f"127.0.0.1:{port}"


def test_all_clients_of_a_query_log_in_with_the_tokens_of_a_function(
    java: Path, brokers: tuple[str, str], sidecars: Sidecars, tmp_path: Path
) -> None:
    plain, with_login = brokers
    stage = set_stage(plain, 2)
    with token_server(LIFETIME_S) as tokens:
        one = sidecars.make(
            "one",
            stage,
            **login_settings(with_login, tokens),
        )
        one.start(command("run", tmp_path))
        # Longer than a token lives: each client renews its own.
        send(plain, stage.input_topic, Given(b"now", b"k", native(stage, b"m", 0)))
        deliveries(stage, b"m", 1)
        later = Given(b"later", b"k", native(stage, b"m", int(3_000 * LIFETIME_S)), partition=1)
        send(plain, stage.input_topic, later)
        deliveries(stage, b"m", 2)
        assert one.stop(60) == 0


def test_a_start_whose_logins_fail_at_first_says_so_and_goes_on(
    java: Path, brokers: tuple[str, str], sidecars: Sidecars, tmp_path: Path
) -> None:
    plain, with_login = brokers
    stage = set_stage(plain, 2)
    with token_server(LIFETIME_S) as tokens:
        one = sidecars.make("one", stage, **login_settings(with_login, tokens), STARTUP_TIMEOUT="10m")
        tokens.open = False
        one.start(command("run", tmp_path))
        eventually(lambda: "gives no token" in one.log, WAIT_S, "it says that it has no token")
        tokens.valid, tokens.open = False, True
        eventually(lambda: "SASL authentication" in one.log, WAIT_S, "it says that the broker refuses the token")
        tokens.valid = True
        send(plain, stage.input_topic, Given(b"now", b"k", native(stage, b"m", 0)))
        deliveries(stage, b"m", 1)
        assert one.stop(60) == 0


def test_a_start_whose_logins_are_always_refused_ends_with_the_reason(
    java: Path, brokers: tuple[str, str], sidecars: Sidecars, tmp_path: Path
) -> None:
    plain, with_login = brokers
    stage = set_stage(plain, 2)
    with token_server(LIFETIME_S) as tokens:
        tokens.valid = False
        one = sidecars.make("one", stage, **login_settings(with_login, tokens), STARTUP_TIMEOUT="10s")
        one.start(command("run", tmp_path))
        eventually(lambda: one.status is not None, WAIT_S, "it ends")
        assert one.status == 1
        assert "no broker answered within STARTUP_TIMEOUT, 10000 ms" in one.log
