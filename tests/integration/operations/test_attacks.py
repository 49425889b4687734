"""A running sidecar and those who mean it harm: what docs/how-to/security.md says of them, where it needs a broker."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from confluent_kafka import Producer

from bench.attackers import ATTACKS
from bench.attacks import attacking
from sidecar.contract import status as figures
from sidecar.contract.control import ControlKind, Outcome
from sidecar.control.client import ControlClient
from sidecar.model import TimerId
from sidecar.settings import Settings
from tests.broker import read_committed, unique
from tests.integration.messages import Given, Pairs, World, native, now_ms, one_sidecar
from tests.unit.engine.test_view import EMPTY
from tests.waiting import eventually

pytestmark = pytest.mark.broker

WAIT_S = 60.0
SOME_S = 5.0
FAR_MS = 3_600_000
OPERATORS = "the-operators-token"
READERS = "the-readers-token"
OTHERS = "another-teams-token"
HEADERS = 20_000
MESSAGES = 200
ATTACK_S = 8
FORGED = 1_234_567_890
_NUMBER = count()


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("attacked")
    with one_sidecar(bootstrap, folder, API_TOKEN=OPERATORS, API_READ_TOKEN=READERS) as made:
        yield made


@pytest.fixture
def marker() -> bytes:
    return unique("m").encode()


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


def pending_one(world: World, marker: bytes, *more: tuple[str, bytes | None]) -> TimerId:
    """Send a message that is due in an hour, and return its id once it waits."""
    due_ms = now_ms() + FAR_MS + next(_NUMBER)
    headers: Pairs = [("retry-origin-topic", world.stage.origin.encode()), ("retry-due-ms", b"%d" % due_ms)]
    (sent,) = world.send(Given(headers=[*headers, ("test", marker), *more]))
    timer = TimerId(sent.partition, sent.offset, due_ms)
    eventually(lambda: is_pending(world, timer), WAIT_S, "it waits")
    return timer


def is_pending(world: World, timer: TimerId) -> bool:
    return world.sidecar.call("GET", f"/pending/messages/{timer}", None, bearer(OPERATORS))[0] == 200


@pytest.mark.parametrize("token", [None, OTHERS, READERS], ids=["stranger", "another team", "reader"])
def test_who_has_not_the_token_changes_nothing_and_writes_nothing(
    world: World, marker: bytes, token: str | None
) -> None:
    timer, name = pending_one(world, marker), marker.decode()
    topics = [world.stage.input_topic, world.stage.dlq_topic, world.stage.origin]
    before = len(read_committed(world.stage.bootstrap, topics))
    changes = [
        ("DELETE", f"/pending/messages/{timer}", None),
        ("PATCH", f"/pending/messages/{timer}", {"delay_ms": 0}),
        ("POST", f"/pending/messages/{timer}/fire", None),
        ("DELETE", f"/pending/messages/id:{name}", None),
        ("PUT", f"/origins/{name}/pause", None),
        ("PUT", "/origins/*/pause", None),
        ("POST", "/dlq/redrives", {"run": name}),
        ("POST", "/policies/reload", None),
        ("PUT", f"/connectors/{world.stage.app_id}/stop", None),
        ("PUT", f"/admin/loggers/{name}", {"level": "DEBUG"}),
        ("POST", f"/made-up/{name}", {"x": "y"}),
    ]
    answers = [world.sidecar.call(*change, bearer(token))[0] for change in changes * 5]
    assert set(answers) <= {401, 403}
    if token != READERS:
        reads = [f"/pending/messages/{timer}", "/pending/messages", "/dlq/messages", f"/control/{name}", f"/x/{name}"]
        assert {world.sidecar.call("GET", path, None, bearer(token))[0] for path in reads} == {401}
    assert len(read_committed(world.stage.bootstrap, topics)) == before
    assert name not in world.sidecar.log, "a stranger's text is in the log"
    assert is_pending(world, timer)


@pytest.mark.parametrize("token", [None, READERS, OTHERS], ids=["unsigned", "the readers'", "another team's"])
def test_a_control_record_is_obeyed_with_the_operators_signature_only(
    world: World, marker: bytes, token: str | None
) -> None:
    timer = pending_one(world, marker)
    stage = world.stage
    settings = Settings(
        bootstrap_servers=stage.bootstrap,
        streams_app_id=stage.app_id,
        input_topic=stage.input_topic,
        dlq_topic=stage.dlq_topic,
        api_token=token,
    )
    with ControlClient(settings) as forger:
        forged = [
            forger.act(ControlKind.CANCEL, timer, deadline_s=SOME_S),
            forger.act(ControlKind.PAUSE, stage.origin, deadline_s=SOME_S),
        ]
    assert {each.outcome for each in forged} <= {None, Outcome.BAD_REQUEST}
    with ControlClient(replace(settings, api_token=OPERATORS)) as operator:
        seen = operator.act(ControlKind.FIRE, timer, deadline_s=WAIT_S)
    assert seen.outcome is Outcome.FIRED, "neither the cancel nor the pause had an effect"


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_over_http_stops_neither_messages_nor_probes_nor_an_operator(
    world: World, marker: bytes, attack: str
) -> None:
    timer = pending_one(world, marker)
    with attacking(attack, world.sidecar.port, ATTACK_S):
        world.send(*(Given(headers=native(world.stage, marker, each * 10)) for each in range(MESSAGES)))
        assert len(world.fired(marker, MESSAGES)) == MESSAGES
        eventually(lambda: world.sidecar.get("/livez")[0] == 200, WAIT_S, "a probe is answered")
        eventually(world.sidecar.ready, WAIT_S, "it is ready")
        gone = world.sidecar.change("DELETE", f"/pending/messages/{timer}", None, bearer(OPERATORS))
        assert gone[0] == 200, gone
    assert len(world.fired(marker, MESSAGES)) == MESSAGES


@pytest.mark.parametrize("token", [None, OTHERS], ids=["unsigned", "another team's"])
def test_forged_figures_show_nothing_and_send_no_request_elsewhere(world: World, token: str | None) -> None:
    before = world.sidecar.group()
    assert before is not None
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.setblocking(False)
        forged = replace(
            EMPTY,
            owner="forger",
            url=f"http://127.0.0.1:{trap.getsockname()[1]}",
            pending=FORGED,
            sequence=10**9,
            as_of_ms=now_ms(),
        ).to_json()
        key = b"p/0"
        headers = figures.signed(token, world.stage.status_topic, 0, key, forged, now_ms())
        producer = Producer({"bootstrap.servers": world.stage.bootstrap})
        producer.produce(world.stage.status_topic, forged, key, 0, headers=[*headers])
        assert producer.flush(10) == 0
        eventually(lambda: "forger" in str(world.sidecar.get("/health")), WAIT_S, "it is read, and named as not signed")
        timer = pending_one(world, unique("m").encode())
        for path in ("/pending", "/pending/messages", f"/pending/messages/{timer}", "/dlq/redrives", "/health"):
            status, body = world.sidecar.call("GET", path, None, bearer(OPERATORS))
            assert status == 200, path
            assert str(FORGED) not in str(body), path
        with pytest.raises(BlockingIOError):
            trap.accept()
    after = world.sidecar.group()
    assert after is not None
    assert [each["owner"] for each in after["partitions"]] == [each["owner"] for each in before["partitions"]]


def test_a_replace_reaches_neither_another_origin_nor_another_group(world: World, marker: bytes) -> None:
    name = ("retry-id", marker)
    own = pending_one(world, marker, name, ("retry-group", b"shop"))
    other_group = pending_one(world, marker, name, ("retry-group", b"warehouse"))
    elsewhere = native(world.stage, marker, FAR_MS, name, ("retry-replace", b"true"))
    elsewhere[0] = ("retry-origin-topic", world.stage.dlq_topic.encode())
    replaces = native(world.stage, marker, FAR_MS, name, ("retry-replace", b"true"), ("retry-group", b"shop"))
    world.send(Given(headers=elsewhere), Given(headers=replaces))
    eventually(lambda: not is_pending(world, own), WAIT_S, "a message of its own origin and group is replaced")
    assert is_pending(world, other_group)


def test_a_message_reaches_the_topics_of_the_list_only(world: World, marker: bytes) -> None:
    stage = world.stage
    forbidden = [stage.input_topic, stage.dlq_topic, stage.changelog_topic, stage.status_topic, "__consumer_offsets"]
    refused: list[Given] = []
    for topic in [*forbidden, "another-teams-topic"]:
        headers = native(stage, marker, 0)
        headers[0] = ("retry-origin-topic", topic.encode())
        refused.append(Given(headers=headers))
    world.send(*refused, Given(headers=native(stage, marker, 0)))
    dead = world.dead(marker, len(refused))
    assert {dict(each.headers)["retry-dlq-reason"] for each in dead} == {b"origin-not-allowed"}
    assert len(world.fired(marker)) == 1


def test_messages_that_mean_harm_hold_up_no_other_and_wait_no_longer_than_allowed(world: World, marker: bytes) -> None:
    many: Pairs = [("h", b"")] * HEADERS
    world.send(
        *(Given(headers=native(world.stage, b"bomb", FAR_MS, *many)) for _ in range(8)),
        Given(headers=native(world.stage, b"bomb", FAR_MS, ("retry-exception", b"a" * 500_000))),
        Given(headers=native(world.stage, marker, 366 * 24 * FAR_MS)),
        Given(headers=native(world.stage, marker, 0)),
    )
    assert len(world.fired(marker)) == 1
    (dead,) = world.dead(marker)
    assert dict(dead.headers)["retry-dlq-reason"] == b"delay-out-of-range"


def test_what_an_operator_does_is_logged_with_the_name_and_no_answer_has_a_secret(world: World, marker: bytes) -> None:
    timer = pending_one(world, marker)
    basic = base64.b64encode(f"alice:{OPERATORS}".encode()).decode()
    alice = {"authorization": f"Basic {basic}"}
    changes = [
        ("PUT", "/origins/*/pause"),
        ("PUT", "/origins/*/resume"),
        ("DELETE", f"/pending/messages/{timer}"),
    ]
    for method, path in changes:
        assert world.sidecar.change(method, path, None, alice)[0] == 200
    lines = [line for line in world.sidecar.log.splitlines() if "api_change" in line and "alice@127.0.0.1" in line]
    assert len(lines) == len(changes)
    name = world.stage.app_id
    shown = ["/", "/connectors", f"/connectors/{name}", f"/connectors/{name}/config", "/admin/loggers", "/health"]
    for path in [*shown, "/connector-plugins", "/openapi.json", "/dlq", "/dlq/redrives", "/origins", "/partitions"]:
        status, body = world.sidecar.call("GET", path, None, alice)
        assert status == 200, path
        assert not any(secret in str(body) for secret in (OPERATORS, READERS)), path
