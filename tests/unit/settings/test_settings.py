"""Sources, precedence, provenance, IBM's names, pass-through, masks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from sidecar.api.connect.plugins import connector_config
from sidecar.errors import SettingsInvalid
from sidecar.settings import SETTINGS, Setting, Settings, advice_for_run, load, rows
from sidecar.settings.client import HARMLESS, REFUSED
from sidecar.settings.table import BY_ALIAS, BY_NAME


def problems_of(**sources: object) -> tuple[str, ...]:
    with pytest.raises(SettingsInvalid) as caught:
        load(**sources)  # type: ignore[arg-type]
    return caught.value.problems


def env(**settings: str) -> dict[str, str]:
    return {f"KAFKA_RETRY_{name}": text for name, text in settings.items()}


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "sidecar.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_any_source_the_defaults_of_the_contract_hold() -> None:
    settings = load()
    assert settings == Settings()
    assert (settings.bootstrap_servers, settings.input_topic, settings.dlq_topic) == ("localhost:9092", "retry", "dlq")
    assert settings.delays_ms == (300_000, 300_000, 1_800_000, 1_800_000, 1_800_000, 3_600_000)
    assert (settings.punctuation_interval_ms, settings.commit_interval_ms, settings.commit_max_messages) == (
        50,
        50,
        10_000,
    )
    assert settings.ibm_delays_ms == (20_000, 40_000, 60_000)
    assert (settings.max_delay_ms, settings.origin_timeout_ms, settings.max_clock_skew_ms) == (
        31_536_000_000,
        86_400_000,
        60_000,
    )
    assert settings.profiles == ("native", "ibm")
    assert settings.origin_topics == ("*",)
    assert (settings.http_host, settings.http_port, settings.api_token, settings.enable_health) == (
        "127.0.0.1",
        8080,
        None,
        True,
    )
    assert settings.create_topics is False
    assert settings.origins == {}


def test_every_default_is_a_value_that_its_setting_takes() -> None:
    for setting in SETTINGS:
        value = getattr(Settings(), setting.attribute)
        if value is not None:
            assert setting.kind.parse(setting.show(value)) == value, setting.name


def test_names_that_follow_from_others_are_derived() -> None:
    settings = load(environ=env(STREAMS_APP_ID="app", STORE_NAME="store"))
    assert settings.group_id == "connect-app"
    assert settings.changelog_topic == "app-store-changelog"
    assert settings.status_topic == "app-status"
    assert settings.transactional_id_prefix == "app-"
    assert settings.own_topics == {"retry", "dlq", "app-store-changelog", "app-status", "app-discards"}
    assert dataclasses.replace(settings, streams_app_id="other").group_id == "connect-other"
    assert load(environ=env(GROUP_ID="mine")).group_id == "mine"


def test_command_line_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    config = yaml_file(tmp_path, "http_port: 1\ninput_topic: from-file\ndlq_topic: from-file-2\n")
    settings = load(
        flags={"http_port": "3"},
        environ=env(HTTP_PORT="2", INPUT_TOPIC="from-env"),
        config=config,
        defaults={"LOG_LEVEL": "error"},
    )
    assert (settings.http_port, settings.input_topic, settings.dlq_topic) == (3, "from-env", "from-file-2")
    assert settings.log_level == "error"
    assert settings.origins == {
        "HTTP_PORT": "command line --http-port",
        "INPUT_TOPIC": "environment KAFKA_RETRY_INPUT_TOPIC",
        "DLQ_TOPIC": f"{config}:3",
        "LOG_LEVEL": "default of this command",
    }


def test_client_properties_follow_the_same_order(tmp_path: Path) -> None:
    config = yaml_file(tmp_path, "client:\n  security.protocol: SSL\n  linger.ms: 5\n  client.id: file\n")
    settings = load(
        client=["client.id=flag=1"],
        environ=env(CLIENT_CLIENT_ID="env", CLIENT_SECURITY_PROTOCOL="SASL_SSL"),
        config=config,
    )
    assert settings.client == {"security.protocol": "SASL_SSL", "linger.ms": "5", "client.id": "flag=1"}
    assert settings.client_properties == {"bootstrap.servers": "localhost:9092", **settings.client}
    assert settings.origins["client.client.id"] == "command line --client"
    assert settings.origins["client.security.protocol"] == "environment KAFKA_RETRY_CLIENT_SECURITY_PROTOCOL"
    assert settings.origins["client.linger.ms"] == f"{config}:3"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_taken_from_each_source(setting: object, tmp_path: Path) -> None:
    assert isinstance(setting, type(SETTINGS[0]))
    examples = {
        "BOOTSTRAP_SERVERS": "a:1", "DELAYS": "1s,2s", "PROFILES": "ibm,native", "ORIGIN_TOPICS": "orders-*",
        "LOG_LEVEL": "debug", "LOG_LEVEL_APACHE": "error", "LOG_FORMAT": "json", "SECURITY_PROTOCOL": "SSL",
        "SASL_MECHANISM": "PLAIN", "ENABLE_HEALTH": "false", "CREATE_TOPICS": "true", "JAAS_ENABLED": "false",
        "MAX_DELAY": "30d", "MAX_ATTEMPTS": "7", "ORIGIN_POLICIES": "{orders: {max_attempts: 3}}",
        "API_TOKEN": "a-token-of-the-tests", "API_READ": "open", "API_READ_TOKEN": "one-that-only-reads",
        "HTTP_ADVERTISED_URL": "https://sidecar.example:8443", "HTTP_TLS_CERT": "/run/tls.crt",
        "HTTP_TLS_KEY": "/run/tls.key", "BACKOFF": "{first: 1s, attempts: 3}", "JITTER": "0.5",
        "EXCEPTION_POLICIES": "{}", "POLICIES": "{slow: {max_age: 7d}}",
        "START_AT": "latest", "NOTIFY_URL": "https://hooks.example.com/T/B?x=1", "CUSTOM_HEADERS": "{origin: x-topic}",
        "OAUTH_CALLBACK": "acme.kafka:token", "ORDER": "key",
    }  # fmt: skip
    text = examples.get(setting.name, "1234")
    needed = {
        "API_READ_TOKEN": {"api_token": "a-token-of-the-tests"},
        "HTTP_TLS_CERT": {"http_tls_key": "/run/tls.key"},
        "HTTP_TLS_KEY": {"http_tls_cert": "/run/tls.crt"},
        "CUSTOM_HEADERS": {"profiles": "custom"},
        "OAUTH_CALLBACK": {"sasl_mechanism": "OAUTHBEARER", "security_protocol": "SASL_SSL"},
    }
    also = needed.get(setting.name, {})
    loaded = [
        load(flags={setting.attribute: text, **also}),
        load(flags=also, environ={setting.env: text}),
        load(flags=also, config=yaml_file(tmp_path, f"{setting.yaml_key}: {text}\n")),
    ]
    for settings in loaded:
        assert getattr(settings, setting.attribute) == setting.kind.parse(text)
        assert setting.name in settings.origins


@pytest.mark.parametrize("blank", ["", " \t"])
@pytest.mark.parametrize("name", [*BY_NAME, *BY_ALIAS, "CLIENT_SASL_PASSWORD", "CLIENT_ACKS"])
def test_an_empty_variable_counts_as_not_set_and_is_reported(name: str, blank: str) -> None:
    settings = load(environ=env(**{name: blank}))
    assert settings == Settings()
    assert settings.origins == {}
    assert settings.warnings == (f"KAFKA_RETRY_{name}: is empty: it counts as not set",)


def test_an_empty_variable_leaves_what_the_file_says(tmp_path: Path) -> None:
    config = yaml_file(tmp_path, "streams_app_id: billing\nfatal_exception: [a.B]\n")
    settings = load(environ=env(STREAMS_APP_ID="", APP_NAME="", FATAL_EXCEPTION=""), config=config)
    assert (settings.streams_app_id, settings.fatal_exception) == ("billing", ("a.B",))
    assert len(settings.warnings) == 3


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_an_empty_value_on_the_command_line_or_in_yaml_is_refused(setting: Setting, tmp_path: Path) -> None:
    """A blank application id would be that of the default's group."""
    found = [
        *problems_of(flags={setting.attribute: " "}),
        *problems_of(config=yaml_file(tmp_path, f"{setting.yaml_key}:\n")),
        *problems_of(config=yaml_file(tmp_path, f"{setting.yaml_key}: ''\n")),
    ]
    assert len(found) == 3
    for problem in found:
        assert problem.startswith(f"{setting.name}: ")
        assert f"is not allowed: it must be {setting.kind.allowed} (from " in problem


def test_an_empty_property_of_the_clients_is_refused(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "client: {client.id: ''}\n")
    assert problems_of(client=["client.id="], config=path) == (
        "client property client.id: has no value: give one, or leave it out (from command line --client)",
        f"client property client.id: has no value: give one, or leave it out (from {path}:1)",
    )
    (problem,) = problems_of(config=yaml_file(tmp_path, "client:\n"))
    assert problem.startswith("client: must be a mapping")


def test_a_list_without_items_can_be_written_in_yaml(tmp_path: Path) -> None:
    assert load(config=yaml_file(tmp_path, "fatal_exception: []\n")).fatal_exception == ()


def test_yaml_values_are_taken_as_they_are_written(tmp_path: Path) -> None:
    text = "api_token: 0123456789012345\ncreate_topics: yes\ndelays: [5m, 300]\nstore_name: 1_0\n"
    settings = load(config=yaml_file(tmp_path, text))
    assert settings.api_token == "0123456789012345"
    assert settings.create_topics is True
    assert settings.delays_ms == (300_000, 300)
    assert settings.store_name == "1_0"


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load(config=yaml_file(tmp_path, "# nothing\n")) == Settings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("input_topics: x", "input_topics: there is no such setting; did you mean input_topic? (from {path}:1)"),
        ('"a\\nb": x', "'a\\nb': there is no such setting (from {path}:1)"),
        ("zzz: x", "zzz: there is no such setting (from {path}:1)"),
        ("\nhttp_port: 1\nhttp_port: 2", "http_port: is there more than once: it must be given once (from {path}:3)"),
        (
            "http_port: [1, 2]",
            "HTTP_PORT: a list is not allowed: it must be a whole number from 0 to 65535 (from {path}:1)",
        ),
        (
            "http_port: {a: 1}",
            "HTTP_PORT: a mapping is not allowed: it must be a whole number from 0 to 65535 (from {path}:1)",
        ),
        ("client: x", "client: must be a mapping such as {{security.protocol: SASL_SSL}} (from {path}:1)"),
        (
            "client: {linger.ms: [1]}",
            "client property linger.ms: must be one value, no list or mapping (from {path}:1)",
        ),
        ("- a", "--config: '{path}' must be a mapping such as `input_topic: retry`"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(text: str, line: str, tmp_path: Path) -> None:
    path = yaml_file(tmp_path, text)
    assert problems_of(config=path) == (line.format(path=path),)


def test_a_file_that_is_missing_or_no_yaml_is_one_line(tmp_path: Path) -> None:
    assert problems_of(config=tmp_path / "none.yaml") == (
        f"--config: '{tmp_path / 'none.yaml'}' cannot be read: No such file or directory",
    )
    (problem,) = problems_of(config=yaml_file(tmp_path, "a: [\nb: 'c"))
    assert problem.startswith(f"--config: '{tmp_path / 'sidecar.yaml'}' is no YAML file in UTF-8: ")
    assert "\n" not in problem
    (tmp_path / "sidecar.yaml").write_bytes(b"a: \xff")
    assert "is no YAML file in UTF-8" in problems_of(config=tmp_path / "sidecar.yaml")[0]


def test_the_environment_names_the_file_unless_the_command_line_does(tmp_path: Path) -> None:
    named = env(CONFIG=str(yaml_file(tmp_path, "http_port: 1\ninput_topic: named")))
    settings = load(environ={**named, **env(HTTP_PORT="3")})
    assert (settings.http_port, settings.input_topic, settings.warnings) == (3, "named", ())
    other = tmp_path / "other.yaml"
    other.write_text("http_port: 2", encoding="utf-8")
    assert load(environ=named, config=other) == load(config=other)


def test_a_file_that_the_environment_names_is_named_so_in_mistakes(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert problems_of(environ=env(CONFIG=str(missing))) == (
        f"KAFKA_RETRY_CONFIG: '{missing}' cannot be read: No such file or directory",
    )
    (problem,) = problems_of(environ=env(CONFIG=str(yaml_file(tmp_path, "- a"))))
    assert problem.startswith("KAFKA_RETRY_CONFIG: ")


def test_an_empty_name_of_the_file_counts_as_not_set() -> None:
    settings = load(environ=env(CONFIG=" "))
    assert settings.warnings == ("KAFKA_RETRY_CONFIG: is empty: it counts as not set",)


def test_all_mistakes_of_all_sources_are_reported_at_once(tmp_path: Path) -> None:
    found = problems_of(
        flags={"max_delay_ms": "soon"},
        client=["acks=1", "nothing"],
        environ=env(HTTP_PORT="99999", API_TOKEN="a b"),
        config=yaml_file(tmp_path, "wrong_key: 1\n"),
    )
    assert found == (
        "client property acks: '1': cannot be set: exactly-once depends on it: always all (from command line --client)",
        (
            "client property ***: has no value: it must be key=value, such as security.protocol=SASL_SSL "
            "(from command line --client)"
        ),
        f"wrong_key: there is no such setting (from {tmp_path / 'sidecar.yaml'}:1)",
        (
            "MAX_DELAY: 'soon' is not allowed: it must be a duration from 1ms to 36500d, such as 250ms, 20s, 5m, 1h, "
            "7d or a whole number of ms (from command line --max-delay)"
        ),
        (
            "HTTP_PORT: '99999' is not allowed: it must be a whole number from 0 to 65535 "
            "(from environment KAFKA_RETRY_HTTP_PORT)"
        ),
        (
            "API_TOKEN: *** is not allowed: it must be one or more different tokens, separated by commas, each of 16 "
            "or more printable ASCII characters without spaces and commas "
            "(from environment KAFKA_RETRY_API_TOKEN)"
        ),
    )


def test_a_long_value_of_many_lines_stays_one_short_line() -> None:
    (problem,) = problems_of(environ=env(INPUT_TOPIC="x\n" * 10_000))
    assert "\n" not in problem
    assert len(problem) < 400


@pytest.mark.parametrize(
    "name",
    [
        "isolation.level", "enable.auto.commit", "auto.offset.reset", "transactional.id", "acks",
        "request.required.acks", "enable.idempotence", "allow.auto.create.topics", "partition.assignment.strategy",
        "group.protocol", "bootstrap.servers", "group.id", "group.instance.id",
    ],
)  # fmt: skip
def test_properties_that_guarantees_rest_on_are_refused_with_the_reason(name: str) -> None:
    variable = f"KAFKA_RETRY_CLIENT_{name.upper().replace('.', '_')}"
    (problem,) = problems_of(environ={variable: "x"})
    assert problem.startswith(f"client property {name}: 'x': cannot be set: ")
    assert problem.endswith(f"(from environment {variable})")


def test_a_name_that_is_no_property_is_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(config=yaml_file(tmp_path, "client: {security_protocol: SSL}"))
    assert "is no librdkafka property: names look like security.protocol" in problem


def test_an_unknown_variable_is_warned_of_with_the_closest_name() -> None:
    settings = load(environ=env(PUNCTUATION_INTERVAL="50", XYZ="1"))
    assert settings.warnings == (
        (
            "KAFKA_RETRY_PUNCTUATION_INTERVAL: there is no such setting, it is ignored; did you mean "
            "KAFKA_RETRY_PUNCTUATION_INTERVAL_MS?"
        ),
        "KAFKA_RETRY_XYZ: there is no such setting, it is ignored",
    )


def test_what_kubernetes_says_of_a_service_named_kafka_retry_is_passed_over() -> None:
    settings = load(
        environ=env(
            SERVICE_HOST="10.0.0.1",
            SERVICE_PORT="8080",
            SERVICE_PORT_HTTP="8080",
            PORT="tcp://10.0.0.1:8080",
            PORT_8080_TCP="tcp://10.0.0.1:8080",
            PORT_8080_TCP_ADDR="10.0.0.1",
            CLIENT_SERVICE_HOST="10.0.0.2",
            CLIENT_PORT_80_TCP_PROTO="tcp",
        )
    )
    assert settings == Settings()
    assert settings.warnings == ()


def test_ibm_other_names_of_a_setting_keep_working() -> None:
    settings = load(environ=env(APP_NAME="ibm-app", LOG_LEVEL_IBM="WARN", LOG_LEVEL_APACHE="ERROR"))
    assert (settings.streams_app_id, settings.log_level, settings.log_level_apache) == ("ibm-app", "warning", "error")
    assert settings.origins["STREAMS_APP_ID"] == "environment KAFKA_RETRY_APP_NAME"


def test_ibm_login_becomes_client_properties() -> None:
    settings = load(
        environ=env(
            SECURITY_PROTOCOL="sasl_ssl",
            SASL_MECHANISM="SCRAM-SHA-512",
            JAAS_ENABLED="true",
            JAAS_USERNAME="u",
            JAAS_PASSWORD=" p ",
        )
    )
    assert settings.client_properties == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": " p ",
    }


def test_ibm_login_without_a_mechanism_is_plain() -> None:
    login = env(SECURITY_PROTOCOL="SASL_SSL", JAAS_ENABLED="true", JAAS_USERNAME="u", JAAS_PASSWORD="p")
    assert load(environ=login).client_properties["sasl.mechanism"] == "PLAIN"


def test_a_login_that_is_not_enabled_is_not_used_and_said_so() -> None:
    settings = load(environ=env(JAAS_USERNAME="u", JAAS_PASSWORD="p"))
    assert settings.client_properties == {"bootstrap.servers": "localhost:9092"}
    assert settings.warnings == (
        "JAAS_USERNAME: is set, but JAAS_ENABLED is false: it is not used",
        "JAAS_PASSWORD: is set, but JAAS_ENABLED is false: it is not used",
    )


@pytest.mark.parametrize("name", ["JAAS_LOGIN_MODULE", "SSL_PROTOCOL", "SSL_ENABLED_PROTOCOLS", "DEFAULT_KEY_SERDE"])
def test_ibm_names_without_meaning_are_accepted_with_a_warning(name: str, tmp_path: Path) -> None:
    (warning,) = load(environ=env(**{name: "x"})).warnings
    assert warning.startswith(f"KAFKA_RETRY_{name}: has no meaning here and is ignored: ")
    (warning,) = load(config=yaml_file(tmp_path, f"{name.lower()}: x")).warnings
    assert warning.startswith(f"{name.lower()}: has no meaning here and is ignored: ")


SECRET_PROPERTIES = [
    "sasl.password",
    "ssl.key.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.client.secret",
    "my.token",
]


@pytest.mark.parametrize("name", ["sasl.oauthbearer.config", "sasl.kerberos.kinit.cmd", "not.known", "SASL.Password"])
def test_a_property_that_is_not_known_to_be_harmless_is_not_shown(name: str) -> None:
    value = "principal=me client_secret=hunter2,scope=all"
    settings = Settings(client={name: value})
    assert next(row.value for row in rows(settings) if row.name == f"client.{name}") == "***"
    assert f"client.{name}" not in connector_config(settings)
    assert {value, "hunter2"} <= set(settings.secrets)


def test_a_property_that_is_known_to_be_harmless_is_shown() -> None:
    settings = Settings(client={"linger.ms": "5", "ssl.ca.location": "/etc/ca.crt"})
    assert {"client.linger.ms": "5", "client.ssl.ca.location": "/etc/ca.crt"}.items() <= connector_config(
        settings
    ).items()
    assert settings.secrets == ()


def test_what_is_harmless_is_what_the_client_library_has() -> None:
    """A name that it does not have may be anything."""
    said = dict.fromkeys(HARMLESS - set(REFUSED), "")
    for name in said:
        try:
            Consumer({"group.id": "g", name: "\0"}).close()
        except KafkaException as refused:
            said[name] = str(refused)
    assert not [name for name, words in said.items() if "No such configuration property" in words]
    assert not [name for name in HARMLESS if "password" in name or "secret" in name or name.endswith(".pem")]


def test_the_parts_of_the_webhooks_address_are_secrets_too() -> None:
    settings = Settings(notify_url="https://user-name:pass-word@hooks.example/a%20b/long-token?key=12345678")
    assert {"/a%20b/long-token?key=12345678", "/a b/long-token?key=12345678", "pass-word"} <= set(settings.secrets)


def test_secrets_are_shown_nowhere() -> None:
    settings = load(
        client=[f"{name}=hunter-{index}" for index, name in enumerate(SECRET_PROPERTIES)],
        environ=env(
            API_TOKEN="hunter-token-of-20-c",
            JAAS_PASSWORD="hunter-pass",
            NOTIFY_URL="https://hunter.example.com/hunter",
        ),
    )
    shown = {row.name: row.value for row in rows(settings)}
    assert shown["API_TOKEN"] == shown["JAAS_PASSWORD"] == shown["NOTIFY_URL"] == "***"
    assert all(shown[f"client.{name}"] == "***" for name in SECRET_PROPERTIES)
    assert "hunter" not in repr(list(rows(settings))) + repr(settings) + repr(settings.origins)
    assert set(settings.secrets) == {
        *("hunter-token-of-20-c", "hunter-pass", "https://hunter.example.com/hunter"),
        *(f"hunter-{i}" for i in range(5)),
    }


def test_secrets_are_masked_in_problems() -> None:
    found = problems_of(
        client=["bad_password=hunter", "acks.secret", "sasl.password:hunter2"],
        environ=env(JAAS_PASSWORD="hun\nter", API_TOKEN="hun ter", NOTIFY_URL="hooks.example.com/hunter"),
    )
    assert len(found) == 6
    assert any(
        each.startswith("NOTIFY_URL: *** is not allowed: it must be an http:// or https:// URL") for each in found
    )
    assert "hun" not in "".join(found)


def test_a_broken_file_is_reported_by_line_without_its_content(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "http_port: 1\napi_token: 'hunter2\n")
    assert problems_of(config=path) == (
        f"--config: '{path}' is no YAML file in UTF-8: found unexpected end of stream in line 3",
    )


def test_rows_say_where_each_value_came_from() -> None:
    shown = {row.name: (row.value, row.origin) for row in rows(load(flags={"delays_ms": "60s,1h"}))}
    assert shown["DELAYS"] == ("1m,1h", "command line --delays")
    assert shown["GROUP_ID"] == ("connect-kafka-retry", "default")
    assert shown["INSTANCE_ID"] == ("(an id kept in STATE_DIR)", "default")
    assert len(shown) == len(SETTINGS)


def test_a_running_sidecar_is_advised_of_wide_open_choices() -> None:
    assert [line.split(":")[0] for line in advice_for_run(Settings())] == ["ORIGIN_TOPICS"]
    assert advice_for_run(Settings(origin_topics=("orders",))) == ()
    (line,) = advice_for_run(Settings(origin_topics=("orders",), http_host="0.0.0.0"))
    assert line.startswith("HTTP_HOST: '0.0.0.0' is not loopback")
    assert advice_for_run(Settings(origin_topics=("orders",), http_host="0.0.0.0", api_token="t")) == ()


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("pod-1", False)],
)
def test_a_host_is_loopback_or_not(host: str, is_loopback: bool) -> None:
    assert Settings(http_host=host).http_is_loopback is is_loopback


@given(
    st.dictionaries(
        st.sampled_from([*(setting.env for setting in SETTINGS), "KAFKA_RETRY_CLIENT_ACKS", "KAFKA_RETRY_\n"]),
        st.one_of(
            st.text(max_size=20), st.sampled_from(["0", "1", "5m", "retry", "dlq", "true", "native", "*", "a,a"])
        ),
        max_size=8,
    )
)
def test_any_environment_gives_settings_or_problems_of_one_line_each(environ: dict[str, str]) -> None:
    try:
        lines = load(environ=environ).warnings
    except SettingsInvalid as error:
        lines = error.problems
        assert lines
    assert all(len(line.splitlines()) == 1 for line in lines)
