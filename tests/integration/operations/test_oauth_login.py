"""Logins with SASL OAUTHBEARER on a real broker: tokens of a function and of an endpoint, renewed before expiry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.devbroker.local_broker import free_port
from tests.broker import local_broker
from tests.integration.messages import Given, World, native
from tests.integration.sidecars import Sidecar, Sidecars, set_stage
from tests.integration.token_server import TokenServer, login_settings, token_server
from tests.waiting import eventually

pytestmark = pytest.mark.broker

LIFETIME_S = 6.0
WAIT_S = 120.0
LOGIN = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,ALSO:SASL_PLAINTEXT",
    "listener.name.also.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.also.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
    # The broker closes a connection whose token expires and is not renewed.
    "listener.name.also.oauthbearer.connections.max.reauth.ms": "3600000",
}


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[str, str]]:
    """Two addresses of one broker: without a login, and with OAUTHBEARER."""
    port = free_port()
    with local_broker(properties=LOGIN, also_port=port) as broker:
        yield broker.bootstrap_servers, f"127.0.0.1:{port}"


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with token_server(LIFETIME_S) as server:
        yield server


def waits_for(sidecar: Sidecar, *words: str) -> None:
    def said() -> bool:
        status, body = sidecar.get("/readyz")
        return status == 503 and any(all(word in reason for word in words) for reason in body["reasons"])

    eventually(said, WAIT_S, f"it is not ready: {words}")


def fires(world: World, marker: bytes) -> None:
    world.send(Given(headers=native(world.stage, marker, 1)))
    assert len(world.fired(marker, deadline_s=WAIT_S)) == 1


def test_a_function_gives_tokens_and_its_failures_are_shown_and_survived(
    brokers: tuple[str, str], tokens: TokenServer, sidecars: Sidecars
) -> None:
    plain, with_login = brokers
    stage = set_stage(plain, 1)
    one = sidecars.make(
        "one",
        stage,
        **login_settings(with_login, tokens),
    )
    tokens.open = False
    one.start()
    waits_for(one, "no broker answers", "OAUTH_CALLBACK", "gives no token", "503")
    assert one.get("/livez")[0] == 200
    tokens.open = True
    one.await_ready(WAIT_S)
    world = World(stage, one)
    fires(world, b"first")

    eventually(lambda: tokens.lasted_s > LIFETIME_S, WAIT_S, "tokens are renewed until the first one has expired")
    fires(world, b"renewed")
    # One for all clients, each at about half of the lifetime of the one before.
    assert len(tokens.given_s) <= 3 + tokens.lasted_s / (LIFETIME_S / 2 - 1)

    tokens.open = False
    waits_for(one, "the login has no valid token", "503")
    assert one.get("/livez")[0] == 200
    assert "token_not_renewed" in one.log
    tokens.open = True
    one.await_ready(WAIT_S)
    fires(world, b"healed")
    assert one.stop() == 0


def test_the_client_library_gets_tokens_from_an_endpoint_with_a_secret_in_a_file(
    brokers: tuple[str, str], tokens: TokenServer, sidecars: Sidecars, tmp_path: Path
) -> None:
    plain, with_login = brokers
    secret = tmp_path / "client-secret"
    secret.write_text("secret-of-the-tests\n", encoding="utf-8")
    stage = set_stage(plain, 1)
    one = sidecars.start(
        "one",
        stage,
        BOOTSTRAP_SERVERS=with_login,
        SECURITY_PROTOCOL="SASL_PLAINTEXT",
        SASL_MECHANISM="OAUTHBEARER",
        CLIENT_SASL_OAUTHBEARER_METHOD="oidc",
        CLIENT_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL=tokens.url,
        CLIENT_SASL_OAUTHBEARER_CLIENT_ID="sidecar",
        CLIENT_SASL_OAUTHBEARER_CLIENT_SECRET_FILE=str(secret),
    )
    world = World(stage, one)
    fires(world, b"first")
    eventually(lambda: tokens.lasted_s > LIFETIME_S, WAIT_S, "tokens are renewed until the first one has expired")
    fires(world, b"renewed")
    assert tokens.logins == {"Basic c2lkZWNhcjpzZWNyZXQtb2YtdGhlLXRlc3Rz"}
