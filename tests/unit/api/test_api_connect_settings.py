"""The settings and the log as Kafka Connect's tools see and change them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from sidecar.api.connect.connector import CONNECTOR_CLASS
from sidecar.api.connect.levels import Levels
from sidecar.api.connect.plugins import connector_config
from sidecar.settings import Settings, load
from sidecar.settings.table import SETTINGS
from tests.unit.api.test_api import Snapshots, assert_problem
from tests.unit.api.test_api_connect import ONE, TWO, view
from tests.unit.api_stage import WORKER, Client, Others
from tests.unit.engine.test_view import NOW_MS

VALIDATE = f"/connector-plugins/{CONNECTOR_CLASS}/config/validate"
LOGGER = "tests.levels"
SECRETS = {
    "KAFKA_RETRY_API_TOKEN": "a-secret-token-of-the-tests",
    "KAFKA_RETRY_CLIENT_SSL_KEY_PASSWORD": "a-secret-password",
    "KAFKA_RETRY_JAAS_ENABLED": "true",
    "KAFKA_RETRY_JAAS_USERNAME": "user",
    "KAFKA_RETRY_JAAS_PASSWORD": "another-secret",
    "KAFKA_RETRY_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
}


@pytest.fixture
def others() -> Others:
    return Others({ONE: 200, TWO: 200})


@pytest.fixture
def client(others: Others) -> Iterator[Client]:
    worker = replace(WORKER, others=others)
    with Client(Snapshots([view(0), view(1, "two")], 2), worker=worker) as made:
        yield made


@pytest.fixture(autouse=True)
def levels_as_before() -> Iterator[None]:
    """Give every logger its level back."""
    before = {name: logging.getLogger(name).level for name in (None, LOGGER, f"{LOGGER}.a", f"{LOGGER}.a.b")}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


# Settings


def test_a_connectors_configuration_is_text_without_secrets_and_without_what_is_not_set() -> None:
    config = connector_config(load(environ={**SECRETS, "KAFKA_RETRY_DELAYS": "20s,1m"}))
    assert all(isinstance(value, str) for value in config.values())
    assert {"delays", "group.id", "origin.topics", "create.topics", "jaas.username"} <= set(config)
    assert config["delays"] == "20s,1m"
    assert config["group.id"] == "connect-kafka-retry"
    assert "secret" not in json.dumps(config)
    assert not {"api.token", "client.ssl.key.password", "instance.id"} & set(config)


def test_client_properties_are_shown_under_their_own_names() -> None:
    config = connector_config(Settings(client={"socket.timeout.ms": "9000", "ssl.key.password": "x"}))
    assert config["client.socket.timeout.ms"] == "9000"
    assert "client.ssl.key.password" not in config


def test_the_plugin_declares_every_setting(client: Client) -> None:
    keys = {key["name"]: key for key in client.get(f"/connector-plugins/{CONNECTOR_CLASS}/config").json()}
    assert len(keys) == len(SETTINGS) + 4
    assert keys["max.delay"]["default_value"] == "365d"
    assert keys["api.token"]["type"] == "PASSWORD"
    assert keys["create.topics"]["type"] == "BOOLEAN"
    assert [name for name, key in keys.items() if key["required"]] == ["connector.class"]


def test_what_is_shown_is_valid(client: Client) -> None:
    config = connector_config(Settings()) | {"connector.class": CONNECTOR_CLASS}
    assert client.request("PUT", VALIDATE, json=config).json()["error_count"] == 0


def test_what_is_wrong_is_named_with_what_is_allowed_and_secrets_stay_secret(client: Client) -> None:
    config = {"connector.class": CONNECTOR_CLASS, "max.delay": "soon", "jaas.password": "hidden", "name": None}
    answer = client.request("PUT", VALIDATE, json=config)
    assert answer.json()["error_count"] == 1
    values = {each["value"]["name"]: each["value"] for each in answer.json()["configs"]}
    (said,) = values["max.delay"]["errors"]
    assert "max.delay='soon' is not allowed: it must be" in said
    assert "hidden" not in answer.text


def wrong(keys: int) -> str:
    """Return policies with so many mistakes."""
    return "{a: {" + ",".join(f"k{number}: 1" for number in range(keys)) + "}}"


@pytest.mark.parametrize(
    "text", [wrong(6_000), "[" * 60_000, "{a: {fatal_exception: &x [" + "a," * 9_000 + "a]}, b: {fatal_exception: *x}}"]
)
def test_a_value_as_large_as_a_body_is_not_looked_into(client: Client, text: str) -> None:
    answer = client.request("PUT", VALIDATE, json={"connector.class": CONNECTOR_CLASS, "origin.policies": text})
    (said,) = [error for each in answer.json()["configs"] for error in each["value"]["errors"]]
    assert said.startswith(f"origin.policies has {len(text):,} characters: more than 4,096 are not looked into here")
    assert len(answer.content) < len(text) + 40_000


def test_the_first_mistakes_of_a_value_are_shown_and_that_there_are_more(client: Client) -> None:
    answer = client.request("PUT", VALIDATE, json={"connector.class": CONNECTOR_CLASS, "origin.policies": wrong(500)})
    assert answer.json()["error_count"] == 21
    assert "there may be more mistakes than these 20" in answer.text


def test_of_many_invalid_values_the_first_ones_are_shown(client: Client) -> None:
    answer = client.request("PUT", VALIDATE, json={f"k{number}": [] for number in range(5_000)})
    assert_problem(answer, 400, "and 19,990 more")
    assert len(answer.content) < 2_000


@pytest.mark.parametrize("name", ["topics", "connector.class"])
def test_half_of_a_surrogate_pair_is_a_mistake_of_the_request(client: Client, name: str) -> None:
    content = b'{"%s": "a\\ud800"}' % name.encode()
    answer = client.request("PUT", VALIDATE, content=content, headers={"content-type": "application/json"})
    assert_problem(answer, 400, "an unpaired surrogate")


def test_numbers_and_true_are_taken_for_their_text(client: Client) -> None:
    config = {"connector.class": CONNECTOR_CLASS, "max.attempts": 0, "create.topics": True, "commit.max.messages": 7}
    values = {
        each["value"]["name"]: each["value"] for each in client.request("PUT", VALIDATE, json=config).json()["configs"]
    }
    assert [values[name]["value"] for name in ("create.topics", "commit.max.messages")] == ["true", "7"]
    assert [name for name, value in values.items() if value["errors"]] == ["max.attempts"]


def test_a_configuration_of_another_kind_is_refused(client: Client) -> None:
    answer = client.request("PUT", VALIDATE, json={"connector.class": "org.x.Sink"})
    assert_problem(answer, 400, "Included connector type org.x.Sink does not match")
    (said,) = client.request("PUT", VALIDATE, json={}).json()["configs"][1]["value"]["errors"]
    assert CONNECTOR_CLASS in said


# Levels


def test_a_level_counts_from_the_next_line_on_and_for_all_below(client: Client) -> None:
    logging.getLogger(f"{LOGGER}.a.b").setLevel(logging.NOTSET)
    answer = client.request("PUT", f"/admin/loggers/{LOGGER}.a", json={"level": "DEBUG"})
    assert answer.json() == [f"{LOGGER}.a", f"{LOGGER}.a.b"]
    assert logging.getLogger(f"{LOGGER}.a.b").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger(LOGGER).isEnabledFor(logging.DEBUG)
    assert client.get(f"/admin/loggers/{LOGGER}.a.b").json() == {"level": "DEBUG", "last_modified": NOW_MS}
    listed = client.get("/admin/loggers").json()
    assert listed[LOGGER]["last_modified"] is None
    assert {"root", "sidecar"} < set(listed)


def test_a_level_takes_back_what_was_set_below_but_not_what_the_process_began_with() -> None:
    levels = Levels(lambda: NOW_MS)
    logging.getLogger(f"{LOGGER}.a.b").setLevel(logging.ERROR)
    levels.set(f"{LOGGER}.a", "TRACE")
    assert levels.set(LOGGER, "WARN") == [LOGGER, f"{LOGGER}.a"]
    found = [levels.one(name) for name in (f"{LOGGER}.a", f"{LOGGER}.a.b")]
    assert found == [("WARN", NOW_MS), ("ERROR", None)]


def test_the_root_is_set_by_its_name() -> None:
    levels = Levels(lambda: NOW_MS)
    levels.set(LOGGER, "DEBUG")
    assert {"root", LOGGER} <= set(levels.set("root", "FATAL"))
    assert levels.one("root") == ("FATAL", NOW_MS)
    assert logging.getLogger().level == logging.CRITICAL
    assert levels.all()[LOGGER].level == "FATAL"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "Desired 'level' parameter was not specified in request."),
        ({"level": "LOUD"}, 404, "invalid log level 'LOUD'."),
        ([], 400, "valid dictionary"),
    ],
)
def test_a_level_that_there_is_not_has_connects_status(client: Client, body: object, status: int, words: str) -> None:
    assert_problem(client.request("PUT", f"/admin/loggers/{LOGGER}", json=body), status, words)


def test_a_change_for_the_whole_group_reaches_every_instance(client: Client, others: Others) -> None:
    with capture_logs() as lines:
        answer = client.request("PUT", f"/admin/loggers/{LOGGER}?scope=cluster", json={"level": "debug"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert others.told == [("PUT", TWO, f"/admin/loggers/{LOGGER}?scope=worker", b'{"level": "DEBUG"}')]
    (line,) = (each for each in lines if each["event"] == "api_change")
    assert (line["what"], line["target"], line["new_level"], line["outcome"]) == ("log-level", LOGGER, "DEBUG", "done")


@pytest.mark.parametrize(("answered", "words"), [(None, "does not answer"), (500, "answers 500")])
def test_an_instance_that_does_not_take_a_level_is_named(
    client: Client, others: Others, answered: int | None, words: str
) -> None:
    others.answers[TWO] = answered
    answer = client.request("PUT", f"/admin/loggers/{LOGGER}?scope=cluster", json={"level": "INFO"})
    assert_problem(answer, 503, TWO, words, applied="unknown")
    assert logging.getLogger(LOGGER).level == logging.INFO
