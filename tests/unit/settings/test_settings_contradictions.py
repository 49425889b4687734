"""Settings that cannot be used together are told in one line each."""

from __future__ import annotations

import pytest

from sidecar.errors import SettingsInvalid
from sidecar.settings import load

LOGIN = {"JAAS_ENABLED": "true", "JAAS_USERNAME": "u", "JAAS_PASSWORD": "p", "SECURITY_PROTOCOL": "SASL_SSL"}

OAUTH = {"OAUTH_CALLBACK": "a.b:c", "SASL_MECHANISM": "OAUTHBEARER", "SECURITY_PROTOCOL": "SASL_SSL"}

CONTRADICTIONS: list[tuple[dict[str, str], str]] = [
    (
        {"INPUT_TOPIC": "a", "DLQ_TOPIC": "a"},
        "INPUT_TOPIC and DLQ_TOPIC: both are 'a': they must be two different topics",
    ),
    (
        {"INPUT_TOPIC": "kafka-retry-status"},
        "INPUT_TOPIC and the status topic: both are 'kafka-retry-status': they must be two different topics",
    ),
    (
        {"DLQ_TOPIC": "kafka-retry-retry-queue-changelog"},
        (
            "DLQ_TOPIC and the changelog topic: both are 'kafka-retry-retry-queue-changelog': "
            "they must be two different topics"
        ),
    ),
    (
        {"STREAMS_APP_ID": "a" * 240},
        (
            f"STREAMS_APP_ID and STORE_NAME: '{'a' * 240}' and 'retry-queue' make an internal topic's name of 262 "
            "characters: it must have 249 at most"
        ),
    ),
    (
        {"DELAYS": "1s,2h", "MAX_DELAY": "1h", "PROFILES": "native"},
        "DELAYS: 2h is above MAX_DELAY 1h: no delay may be longer",
    ),
    (
        {"MAX_DELAY": "30m", "PROFILES": "native"},
        "DELAYS: 1h (the default) is above MAX_DELAY 30m: no delay may be longer",
    ),
    (
        {"DELAYS": "1s", "MAX_DELAY": "50s"},
        (
            "THIRD_DELAY_MS: 1m (the default) is above MAX_DELAY 50s: no delay may be longer; "
            "PROFILES without ibm needs none"
        ),
    ),
    (
        {"PROFILES": "native", "SECOND_DELAY_MS": "10000"},
        (
            "SECOND_DELAY_MS: 10s is set, but PROFILES is 'native': it must name ibm, or SECOND_DELAY_MS must not be "
            "set; DELAYS is for profile native"
        ),
    ),
    (
        {"DROPPABLE_EXCEPTION": "a.B,c.D", "FATAL_EXCEPTION": "c.D"},
        "DROPPABLE_EXCEPTION and FATAL_EXCEPTION: both name 'c.D': it must be in one of them only",
    ),
    (
        {"RETRIABLE_EXCEPTION": "a.*", "FATAL_EXCEPTION": "a.*"},
        "RETRIABLE_EXCEPTION and FATAL_EXCEPTION: both name 'a.*': it must be in one of them only",
    ),
    (
        {"ORIGIN_TOPICS": "orders,dlq"},
        "ORIGIN_TOPICS: 'dlq' is the input, the DLQ or an internal topic: it cannot be an origin",
    ),
    (
        {"STREAMS_APP_ID": "a", "APP_NAME": "b"},
        (
            "STREAMS_APP_ID: 'b' and 'a' differ (from environment KAFKA_RETRY_APP_NAME and environment "
            "KAFKA_RETRY_STREAMS_APP_ID): two names of one setting, set one of them, or both alike"
        ),
    ),
    (
        {"LOG_LEVEL": "info", "LOG_LEVEL_IBM": "debug"},
        (
            "LOG_LEVEL: 'info' and 'debug' differ (from environment KAFKA_RETRY_LOG_LEVEL and environment "
            "KAFKA_RETRY_LOG_LEVEL_IBM): two names of one setting, set one of them, or both alike"
        ),
    ),
    (
        LOGIN | {"JAAS_PASSWORD": ""},
        "JAAS_PASSWORD: is not set, but JAAS_ENABLED is true: it must be set",
    ),
    (
        LOGIN | {"JAAS_USERNAME": ""},
        "JAAS_USERNAME: is not set, but JAAS_ENABLED is true: it must be set",
    ),
    (
        LOGIN | {"SECURITY_PROTOCOL": ""},
        "SECURITY_PROTOCOL: is not set, but JAAS_ENABLED is true: it must be SASL_SSL or SASL_PLAINTEXT",
    ),
    (
        LOGIN | {"SECURITY_PROTOCOL": "SSL"},
        "SECURITY_PROTOCOL: is 'SSL', but JAAS_ENABLED is true: it must be SASL_SSL or SASL_PLAINTEXT",
    ),
    (
        {"SECURITY_PROTOCOL": "SSL", "CLIENT_SECURITY_PROTOCOL": "PLAINTEXT"},
        (
            "SECURITY_PROTOCOL and client property security.protocol: 'SSL' and 'PLAINTEXT' differ: set one of them, "
            "or both alike"
        ),
    ),
    (
        {"SASL_MECHANISM": "PLAIN", "CLIENT_SASL_MECHANISMS": "GSSAPI"},
        (
            "SASL_MECHANISM and client property sasl.mechanisms: 'PLAIN' and 'GSSAPI' differ: "
            "set one of them, or both alike"
        ),
    ),
    (
        LOGIN | {"CLIENT_SASL_PASSWORD": "q"},
        "JAAS_PASSWORD and client property sasl.password: *** and *** differ: set one of them, or both alike",
    ),
    (
        OAUTH | {"SASL_MECHANISM": ""},
        "OAUTH_CALLBACK: 'a.b:c' is set, but SASL_MECHANISM is not set: it must be OAUTHBEARER",
    ),
    (
        OAUTH | {"SASL_MECHANISM": "", "CLIENT_SASL_MECHANISMS": "PLAIN"},
        "OAUTH_CALLBACK: 'a.b:c' is set, but SASL_MECHANISM is 'PLAIN': it must be OAUTHBEARER",
    ),
    (
        OAUTH | {"SECURITY_PROTOCOL": "SSL"},
        "OAUTH_CALLBACK: 'a.b:c' is set, but SECURITY_PROTOCOL is 'SSL': it must be SASL_SSL or SASL_PLAINTEXT",
    ),
    (
        OAUTH | {"CLIENT_SASL_OAUTHBEARER_METHOD": "oidc"},
        (
            "OAUTH_CALLBACK: 'a.b:c' is set, but client property sasl.oauthbearer.method gives tokens too: "
            "set one of them"
        ),
    ),
    (
        {"SASL_MECHANISM": "OAUTHBEARER"},
        (
            "SASL_MECHANISM: is OAUTHBEARER, but nothing gives a token: set OAUTH_CALLBACK, or client property "
            "sasl.oauthbearer.method to oidc"
        ),
    ),
]


@pytest.mark.parametrize(
    ("settings", "line"), CONTRADICTIONS, ids=lambda value: "+".join(value) if isinstance(value, dict) else ""
)
def test_a_contradiction_is_one_line(settings: dict[str, str], line: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load(environ={f"KAFKA_RETRY_{name}": text for name, text in settings.items()})
    assert caught.value.problems == (line,)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MAX_ATTEMPTS", "1001"),
        ("MAX_ATTEMPTS", "0"),
        ("COMMIT_MAX_MESSAGES", "0"),
        ("COMMIT_MAX_MESSAGES", "10001"),
        ("PROFILES", "native,summer"),
        ("INPUT_TOPIC", "re try"),
        ("STREAMS_APP_ID", "a/b"),
        ("REPLICATION_FACTOR", "0"),
        ("DELAYS", ",".join(["1s"] * 1001)),
        ("ORIGIN_TIMEOUT", "0s"),
        ("START_AT", "1767225600"),
        ("START_AT", "yesterday"),
        ("OAUTH_CALLBACK", "acme.token"),
        ("OAUTH_CALLBACK", "acme tokens:token"),
    ],
)
def test_a_value_out_of_its_range_names_what_is_allowed(name: str, text: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load(environ={f"KAFKA_RETRY_{name}": text})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{name}: '{text[:80]}")
    assert " is not allowed: it must be " in problem


def test_one_setting_under_two_names_may_be_set_alike() -> None:
    settings = load(environ={"KAFKA_RETRY_STREAMS_APP_ID": "a", "KAFKA_RETRY_APP_NAME": "a"})
    assert settings.streams_app_id == "a"


def test_a_login_in_both_words_may_be_set_alike() -> None:
    settings = load(environ={"KAFKA_RETRY_SECURITY_PROTOCOL": "SSL", "KAFKA_RETRY_CLIENT_SECURITY_PROTOCOL": "ssl"})
    assert settings.client_properties["security.protocol"] == "ssl"


@pytest.mark.parametrize(
    "client", [{"CLIENT_SASL_OAUTHBEARER_METHOD": "oidc"}, {"CLIENT_ENABLE_SASL_OAUTHBEARER_UNSECURE_JWT": "true"}]
)
def test_a_login_whose_tokens_the_client_library_gets_needs_no_function(client: dict[str, str]) -> None:
    settings = load(
        environ={
            f"KAFKA_RETRY_{name}": text for name, text in {**client, "SASL_MECHANISM": OAUTH["SASL_MECHANISM"]}.items()
        }
    )
    assert settings.client_properties["sasl.mechanism"] == "OAUTHBEARER"


def test_another_name_in_a_weaker_source_is_overridden_not_contradicted() -> None:
    settings = load(flags={"streams_app_id": "a"}, environ={"KAFKA_RETRY_APP_NAME": "b"})
    assert settings.streams_app_id == "a"


def test_a_wrong_value_does_not_contradict_others_as_well() -> None:
    """The default that stands in for a wrong value is not what the user wrote."""
    with pytest.raises(SettingsInvalid) as caught:
        load(environ={"KAFKA_RETRY_MAX_DELAY": "1s,", "KAFKA_RETRY_DELAYS": "400d"})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["MAX_DELAY"]


def test_https_needs_both_files_and_the_reading_token_is_another_one() -> None:
    def problems(**given: str) -> list[str]:
        with pytest.raises(SettingsInvalid) as refused:
            load(flags=given)
        return list(refused.value.problems)

    assert problems(http_tls_cert="/c") == [
        "HTTP_TLS_CERT: '/c' is set, but HTTP_TLS_KEY is not: TLS needs both, or neither"
    ]
    assert problems(http_tls_key="/k") == [
        "HTTP_TLS_KEY: '/k' is set, but HTTP_TLS_CERT is not: TLS needs both, or neither"
    ]
    token = "a-token-of-the-tests"
    assert problems(api_read_token=token) == [
        "API_READ_TOKEN: is set, but API_TOKEN is not: changes would need no token"
    ]
    (same,) = problems(api_read_token=token, api_token=token)
    assert token not in same
    load(flags={"api_read_token": token, "api_token": token + "2", "http_tls_cert": "/c", "http_tls_key": "/k"})
