"""The ACLs on the page of security suffice: a broker denies all else, and each role does what it is for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sidecar.cli import main
from sidecar.clock import SystemClock
from sidecar.devbroker.local_broker import free_port
from tests import broker as broker_of_tests
from tests.docs import acls
from tests.docs.pages import DOCS, dialogues
from tests.integration.sidecars import Sidecar, Stage
from tests.waiting import eventually

PAGE = DOCS / "how-to/security.md"
ROLES = {block.marks["acl"].removeprefix("User:"): block for block in dialogues(PAGE) if "acl" in block.marks}
PASSWORD = "not-a-secret"  # of a broker that this test starts
PATIENT = ("--timeout", "60")

_NO_COORDINATOR_YET = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[str, str]]:
    """A broker that denies what no ACL allows: its address for the test, and that at which users log in."""
    port, login_port, controller = free_port(), free_port(), "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in ROLES)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    controller_port = free_port()
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login_port},"
        f"CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login_port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listener.security.protocol.map": f"{controller},LOGIN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f"{module} {users};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with broker_of_tests.local_broker(port, properties) as broker:
        for block in ROLES.values():
            acls.grant(broker.bootstrap_servers, block.commands)
        yield broker.bootstrap_servers, f"127.0.0.1:{login_port}"


def login(address: str, user: str) -> dict[str, str]:
    """Return the settings of one who logs in."""
    return {
        "BOOTSTRAP_SERVERS": address,
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "JAAS_ENABLED": "true",
        "JAAS_USERNAME": user,
        "JAAS_PASSWORD": PASSWORD,
    }


def call(settings: Mapping[str, str], *args: str, status: int = 0) -> str:
    """Run a command by these settings and return what it prints; it must end with this status."""
    environment = {f"KAFKA_RETRY_{name}": value for name, value in settings.items()}
    done = CliRunner(env=environment).invoke(main, args)
    assert done.exit_code == status, f"{args}: {done.exit_code}\n{done.output}\n{done.exception!r}"
    return done.output


@contextlib.contextmanager
def running(name: str, address: str, folder: Path, user: str, *command: str) -> Iterator[Sidecar]:
    """Start a process of this role and yield it when it is ready."""
    stage = Stage(address, "kafka-retry")
    settings = {
        **login(address, user),
        "INPUT_TOPIC": "retry",
        "DLQ_TOPIC": "dlq",
        "ORIGIN_TOPICS": "orders,payments,checks",
    }
    process = Sidecar(name, stage, folder, settings)
    process.start(("-m", "sidecar", *command))
    try:
        process.await_ready()
        yield process
        assert process.stop() == 0
    except AssertionError as error:
        raise AssertionError(f"{error}\n{process.last_lines()}") from error
    finally:
        process.end()


def leave_of_ibm(bootstrap: str) -> None:
    """Leave what IBM's program leaves: a message in its changelog, and the offsets of its group."""
    changelog = "ibm-retry-retry-queue-changelog"
    broker_of_tests.create_topic(bootstrap, changelog, 1, {"cleanup.policy": "compact"})
    value = {"timeStamp": SystemClock().wall_ms() + 3_600_000, "originTopic": "orders", "retryAttempt": 1, "payload": 7}
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(changelog, json.dumps(value), "key")
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ibm-retry"})

    def committed() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition("retry", 0, 0)], asynchronous=False)
        except KafkaException as error:
            # The topic of the groups' offsets is made for the first group, and may have no leader yet.
            if error.args[0].code() not in _NO_COORDINATOR_YET:
                raise
            return False
        return True

    try:
        eventually(committed, 60, "the offsets of IBM's group are committed")
    finally:
        consumer.close()


def test_each_role_does_its_work_with_the_permissions_on_the_page_alone(
    guarded: tuple[str, str], tmp_path: Path
) -> None:
    plain, address = guarded
    as_sidecar = {**login(address, "sidecar"), "STATE_DIR": str(tmp_path / "doctor")}

    call(login(address, "creator"), "topics", "create", "--partitions", "2")
    for origin in ("orders", "payments", "checks"):
        broker_of_tests.create_topic(plain, origin)
    leave_of_ibm(plain)
    migrate = ("migrate", "ibm", "--from-app-id", "ibm-retry", "--retriable-exception", "com.acme.Busy", "--json")
    migrated = json.loads(call(login(address, "migrator"), *migrate))
    assert (migrated["messages"], "ibm-retry stopped" in migrated["began"]) == (1, True)
    with running("sidecar", address, tmp_path, "sidecar", "run") as sidecar:
        report = json.loads(call(as_sidecar, "doctor", "--json"))
        assert [each for each in report["checks"] if each["state"] == "problem"] == []

        application = login(address, "application")
        call(application, "send", "--origin", "orders", "--delay", "1h", "--count", "3", "--retry-id", "order-4711")
        call(application, "send", "--origin", "payments", "--delay", "100ms", "--key", "k")
        call(application, "send", "--origin", "nowhere", "--delay", "1h", "--key", "dead")
        eventually(lambda: sidecar.pending() == 4, 40, "what is due later waits")
        broker_of_tests.read_committed(plain, ["payments"], until=lambda read: len(read) == 1)
        broker_of_tests.read_committed(plain, ["dlq"], until=lambda read: len(read) == 1)

        operator = login(address, "operator")
        call(operator, "pause", "payments", *PATIENT)
        call(operator, "resume", "payments", *PATIENT)
        call(operator, "reschedule", "id:order-4711", "--delay", "2h", *PATIENT)
        call(operator, "cancel", "id:order-4711", *PATIENT)
        eventually(lambda: sidecar.pending() == 1, 40, "what was cancelled waits no more")

        redriver = login(address, "redriver")
        assert json.loads(call(redriver, "dlq", "report", "--json"))
        call(redriver, "dlq", "redrive", "--to-origin", "orders", "--yes")
        broker_of_tests.read_committed(plain, ["retry"], until=lambda read: sum(r.key == b"dead" for r in read) == 2)

        with running("viewer", address, tmp_path, "viewer", "api") as viewer:
            eventually(lambda: (viewer.group() or {}).get("complete"), 40, "the viewer knows all partitions")
        call(login(address, "tester"), "round-trip", "--origin", "checks", "--timeout", "120")

        viewing = login(address, "viewer")
        call(viewing, "list", "--origin", "orders")


def test_what_no_acl_allows_is_denied(guarded: tuple[str, str]) -> None:
    """Otherwise the test above would prove nothing."""
    outcome = json.loads(call(login(guarded[1], "viewer"), "doctor", "--json", status=1))
    missing = [each["text"] for each in outcome["checks"] if "missing" in each["text"]]
    assert any("dlq" in text for text in missing), missing
