"""Client configurations: what the operator may change, what not, and what the client library says to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer

from sidecar.errors import SettingsInvalid
from sidecar.kafka import config
from sidecar.settings import Settings, load

ROLES: dict[str, Callable[[Settings], config.Config]] = {
    "input": config.input_consumer,
    "restore": config.changelog_reader,
    "transactions": lambda settings: config.transactional_producer(settings, "app-1", 500_000),
    "status": config.status_producer,
    "send": config.retry_producer,
    "admin": config.admin,
    "client": config.common,
}


def _given(**client: str) -> Settings:
    return Settings(client={name.replace("_", "."): value for name, value in client.items()})


@pytest.mark.parametrize("role", ROLES)
def test_every_client_has_the_brokers_and_its_own_id_and_creates_no_topics(role: str) -> None:
    made = ROLES[role](Settings(bootstrap_servers="a:1,b:2", streams_app_id="app"))
    assert made["bootstrap.servers"] == "a:1,b:2"
    assert made["client.id"] == f"app-{role}"
    assert made["allow.auto.create.topics"] is False


def test_the_input_consumer_commits_nothing_by_itself_and_never_guesses_an_offset() -> None:
    made = config.input_consumer(Settings(streams_app_id="app"))
    guarantees = {
        "group.id": "connect-app",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.partition.eof": False,
    }
    assert guarantees.items() <= made.items()
    assert made["session.timeout.ms"] == 12_000
    assert made["queued.max.messages.kbytes"] == 16_384


def test_membership_is_static_only_with_an_id_that_was_set() -> None:
    assert "group.instance.id" not in config.input_consumer(Settings())
    assert config.input_consumer(Settings(), "pod-1")["group.instance.id"] == "pod-1"


def test_the_restoring_reader_has_a_group_that_is_not_the_members() -> None:
    assert config.changelog_reader(Settings(streams_app_id="app"))["group.id"] == "connect-app-restore"
    assert config.changelog_reader(Settings())["isolation.level"] == "read_committed"


def test_the_transactional_producer_gives_up_well_within_its_transaction() -> None:
    made = config.transactional_producer(Settings(), "app-1", 500_000)
    assert made["transactional.id"] == "app-1"
    assert made["transaction.timeout.ms"] == 20_000
    assert made["message.timeout.ms"] == 6_000
    assert made["topic.metadata.propagation.max.ms"] == 1_000
    assert made["batch.size"] == 500_000
    assert made["partitioner"] == "murmur2_random"
    assert made["acks"] == "all"


@pytest.mark.parametrize(("asked", "size"), [("1000", 1_000), ("900000", 500_000)])
def test_the_operator_can_only_lower_the_batch_size(asked: str, size: int) -> None:
    made = config.transactional_producer(_given(batch_size=asked), "app-1", 500_000)
    assert made["batch.size"] == size


def test_the_operator_changes_tuning_but_no_guarantee() -> None:
    given = _given(session_timeout_ms="30000", enable_auto_offset_store="true", client_id="mine")
    made = config.input_consumer(given)
    assert made["session.timeout.ms"] == "30000"
    assert made["client.id"] == "mine"
    assert made["enable.auto.offset.store"] is False


def test_a_property_goes_only_to_clients_that_know_it() -> None:
    given = _given(linger_ms="50", fetch_min_bytes="10", ssl_ca_location="/ca.pem")
    consumer, producer, admin = config.input_consumer(given), config.status_producer(given), config.admin(given)
    assert ("linger.ms" in consumer, "fetch.min.bytes" in consumer) == (False, True)
    assert (producer["linger.ms"], "fetch.min.bytes" in producer) == ("50", False)
    assert ("linger.ms" in admin, "fetch.min.bytes" in admin) == (False, False)
    assert all(made["ssl.ca.location"] == "/ca.pem" for made in (consumer, producer, admin))


def test_another_name_of_our_tuning_takes_its_place() -> None:
    made = config.transactional_producer(_given(delivery_timeout_ms="5000"), "app-1")
    assert made["delivery.timeout.ms"] == "5000"
    assert "message.timeout.ms" not in made


@pytest.mark.parametrize("role", ROLES)
def test_the_client_library_takes_each_configuration_without_a_warning(
    role: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made = {**ROLES[role](Settings()), "bootstrap.servers": "127.0.0.1:1"}
    if "group.id" in made:
        Consumer(made).close()
    else:
        Producer(made).flush(0)
    said = [line for line in capfd.readouterr().err.splitlines() if "CONFWARN" in line]
    assert said == []


def _problems(*properties: str) -> tuple[str, ...]:
    with pytest.raises(SettingsInvalid) as caught:
        config.validate_client_properties(load(client=properties))
    return caught.value.problems


def test_status_records_keep_their_order_without_the_start_of_an_idempotent_producer() -> None:
    given = config.status_producer(Settings(client={"max.in.flight": "5"}))
    assert (given["acks"], given["enable.idempotence"]) == ("all", False)
    assert given["max.in.flight.requests.per.connection"] == 1
    assert list(given).index("max.in.flight.requests.per.connection") > list(given).index("max.in.flight")


def test_without_properties_of_the_operator_no_client_is_made_to_check_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "Consumer", None)
    monkeypatch.setattr(config, "Producer", None)
    config.validate_client_properties(Settings(bootstrap_servers="kafka:9092"))


def test_what_is_delivered_is_compressed_unless_the_operator_says_otherwise() -> None:
    given = config.transactional_producer(Settings(), "id")
    assert given["compression.type"] == "lz4"
    for name in ("compression.type", "compression.codec"):
        own = config.transactional_producer(load(client=[f"{name}=zstd"]), "id")
        assert {each: own[each] for each in own if each.startswith("compression")} == {name: "zstd"}
    assert config.compresses(Settings())
    assert not config.compresses(load(client=["compression.codec=none"]))


def test_no_properties_and_good_ones_are_valid() -> None:
    config.validate_client_properties(Settings())
    config.validate_client_properties(load(client=["linger.ms=20", "compression.type=lz4", "fetch.min.bytes=5"]))


def test_every_property_that_the_library_refuses_gets_one_line() -> None:
    first, second, third = sorted(_problems("foo.bar=1", "linger.ms=abc", "session.timeout.ms=999999999"))
    assert first == 'CLIENT_FOO_BAR: ***: No such configuration property: "foo.bar" (from command line --client)'
    assert second.startswith("CLIENT_LINGER_MS: 'abc': Invalid value")
    assert third.startswith("CLIENT_SESSION_TIMEOUT_MS: '999999999': ")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("retries=0", "`retries` must be set >= 1 when `enable.idempotence` is true"),
        ("delivery.timeout.ms=60000", "`message.timeout.ms` must be set <= `transaction.timeout.ms`"),
        ("session.timeout.ms=400000", "`max.poll.interval.ms`must be >= `session.timeout.ms`"),
        ("partitioner=random", "cannot be set: always murmur2_random"),
        ("enable.auto.offset.store=true", "cannot be set: always false"),
        ("logger=x", "is not a librdkafka property"),
    ],
)
def test_a_value_that_contradicts_the_others_is_named(given: str, said: str) -> None:
    (problem,) = _problems(given)
    name, value = given.split("=")
    setting = f"CLIENT_{name.upper().replace('.', '_')}"
    shown = "***" if name == "logger" else repr(value)
    assert problem == f"{setting}: {shown}: {said} (from command line --client)"


def test_a_property_from_the_environment_is_named_with_its_variable() -> None:
    with pytest.raises(SettingsInvalid) as caught:
        config.validate_client_properties(load(environ={"KAFKA_RETRY_CLIENT_NO_SUCH": "1"}))
    assert str(caught.value).endswith("(from environment KAFKA_RETRY_CLIENT_NO_SUCH)")


def test_a_secret_is_never_repeated() -> None:
    (problem,) = _problems("sasl.oauthbearer.client.secret=topsecret", "no.password.known=topsecret")
    assert "CLIENT_NO_PASSWORD_KNOWN: ***" in problem
    assert "topsecret" not in problem
