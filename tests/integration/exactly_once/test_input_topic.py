"""Changes to the input topic while messages wait: grown, cut, rewound, deleted and recreated."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Final, NamedTuple

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from sidecar.model import TimerId
from tests.broker import create_topic, make_topic_anew, partitions_of, read_committed
from tests.integration.messages import Given, Pairs, Sent, World, marked, native, now_ms, scrape, send
from tests.integration.sidecars import LOG_APPEND_TIME, Sidecar, Sidecars, Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

RPC_S = 15.0
TOKEN: Final = "token-of-sixteen-or-more"
LOGIN: Final = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def wait_for_pending(sidecar: Sidecar, count: int) -> None:
    eventually(lambda: sidecar.pending() == count, 40, f"{count} wait")


def test_partitions_that_are_added_while_it_runs_are_served(
    stage: Stage, sidecars: Sidecars, admin: AdminClient, marker: bytes
) -> None:
    world = World(stage, sidecars.start("one", stage))
    admin.create_partitions([NewPartitions(stage.input_topic, 6)])[stage.input_topic].result(RPC_S)
    eventually(lambda: partitions_of(stage.bootstrap, stage.input_topic) == 6, 20, "there are six")
    world.send(*(Given(b"%d" % n, headers=native(stage, marker, 500), partition=n) for n in range(6)))
    assert sorted(record.value or b"" for record in world.fired(marker, 6)) == [b"%d" % n for n in range(6)]
    assert partitions_of(stage.bootstrap, stage.changelog_topic) == 6
    assert partitions_of(stage.bootstrap, stage.status_topic) == 6
    eventually(lambda: world.sidecar.partitions() == dict.fromkeys(range(6), "running"), 20, "all six run")


def test_a_start_waits_while_the_changelog_has_another_number_of_partitions_and_says_what_fixes_it(
    stage: Stage, sidecars: Sidecars
) -> None:
    create_topic(stage.bootstrap, stage.changelog_topic, 7, {"cleanup.policy": "compact"})
    one = sidecars.make("one", stage)
    one.start()

    def reasons() -> str:
        status, body = one.get("/readyz")
        return "\n".join(body["reasons"]) if status == 503 and body else ""

    eventually(lambda: f"topic {stage.changelog_topic}: has 7 partitions" in reasons(), 60, "it says what is wrong")
    assert one.stop() == 0
    assert "Traceback" not in one.log


def test_records_that_retention_took_before_they_were_read_are_counted_and_the_rest_goes_on(
    stage: Stage, sidecars: Sidecars, admin: AdminClient, marker: bytes
) -> None:
    one = sidecars.start("one", stage)
    world = World(stage, one)
    world.send(Given(b"waits", headers=native(stage, marker, 8_000)))
    wait_for_pending(one, 1)
    one.stop()
    send(stage.bootstrap, stage.input_topic, *(Given(b"%d" % n, headers=native(stage, marker, 1)) for n in range(10)))
    before = TopicPartition(stage.input_topic, 0, 6)
    admin.delete_records([before])[before].result(RPC_S)
    one.start()
    fired = world.fired(marker, 6)
    assert {record.value for record in fired} == {b"waits", *(b"%d" % n for n in range(5, 10))}
    assert "input_records_gone" in one.log
    assert one.get("/health")[1]["details"]["skipped_input_records"] == 5
    assert 'retry_sidecar_input_lost_total{partition="0"} 5.0' in scrape(one)


def test_an_operators_reset_backwards_counts_what_waits_once_and_fires_again_what_had_fired(
    stage: Stage, sidecars: Sidecars, admin: AdminClient, marker: bytes
) -> None:
    one = sidecars.start("one", stage, API_TOKEN=TOKEN)
    world = World(stage, one)
    later = native(stage, marker, 3_600_000, ("retry-id", marker))
    world.send(*(Given(b"soon", headers=native(stage, marker, 1)) for _ in range(5)))
    world.send(*(Given(b"later", headers=later) for _ in range(5)))
    world.fired(marker, 5)
    wait_for_pending(one, 5)
    one.stop()
    to = ConsumerGroupTopicPartitions(stage.group_id, [TopicPartition(stage.input_topic, 0, 0)])
    eventually(lambda: _altered(admin, to, stage.group_id), 20, "the group is empty and its offset set back")
    one.start()
    again = world.fired(marker, 10)
    assert [record.value for record in again] == [b"soon"] * 10
    wait_for_pending(one, 5)
    path = f"/pending/messages/id:{marker.decode()}/fire"
    # What took longer than a request waits may have fired after all.
    done = {200, 202, 404}
    eventually(lambda: one.call("POST", path, None, LOGIN)[0] in done, 40, "they are fired by command")
    fired = world.fired(marker, 15)
    assert sorted(record.value or b"" for record in fired) == [b"later"] * 5 + [b"soon"] * 10
    wait_for_pending(one, 0)


def _altered(admin: AdminClient, to: ConsumerGroupTopicPartitions, group: str) -> bool:
    answer = admin.alter_consumer_group_offsets([to])[group].result(RPC_S)
    return all(each.error is None for each in answer.topic_partitions)


class Anew(NamedTuple):
    """One sidecar over several generations of its input topic."""

    stage: Stage
    sidecar: Sidecar
    marker: bytes

    @property
    def paused(self) -> str:
        return f"{self.stage.app_id}-paused"

    def send(self, value: bytes, headers: Pairs) -> Sent:
        (sent,) = send(self.stage.bootstrap, self.stage.input_topic, Given(value, headers=headers))
        return sent

    def put_far(self, value: bytes, due_ms: int) -> str:
        """Send one and return the timer id that its sender knows from the delivery report."""
        origin, _, mark = native(self.stage, self.marker, 0)
        sent = self.send(value, [origin, ("retry-due-ms", b"%d" % due_ms), mark])
        return str(TimerId(sent.partition, sent.offset, due_ms))

    def send_soon(self, value: bytes, count: int, origin: str = "") -> None:
        _, *rest = native(self.stage, self.marker, 1)
        headers: Pairs = [("retry-origin-topic", (origin or self.stage.origin).encode()), *rest]
        send(self.stage.bootstrap, self.stage.input_topic, *(Given(value, headers=headers) for _ in range(count)))

    def fired(self, count: int) -> list[bytes]:
        """Return the values on the origins, sorted, once there are as many."""
        records = read_committed(
            self.stage.bootstrap,
            [self.stage.origin, self.paused],
            60,
            until=lambda seen: len(marked(seen, self.marker)) >= count,
        )
        return sorted(record.value or b"" for record in marked(records, self.marker))

    def counted(self) -> Counter[bytes]:
        """Return how often each value is on the origin now."""
        records = read_committed(self.stage.bootstrap, [self.stage.origin], 60)
        return Counter(record.value or b"" for record in marked(records, self.marker))

    def waiting(self) -> dict[str, bytes]:
        """Return what can be listed by timer id; empty while some of it cannot."""
        status, body = self.sidecar.get("/pending/messages?limit=100")
        if status != 200 or not body["complete"]:
            return {}
        shown = [
            self.sidecar.call("GET", f"/pending/messages/{each['id']}?payload=true", None, LOGIN)
            for each in body["messages"]
        ]
        return {each["id"]: base64.b64decode(each["value"]) for status, each in shown if status == 200}

    def value_of(self, timer: str) -> bytes:
        """Return the value of a message that waits."""
        shown = self.sidecar.call("GET", f"/pending/messages/{timer}?payload=true", None, LOGIN)[1]
        return base64.b64decode(shown["value"])

    def await_waiting(self, *values: bytes) -> dict[str, bytes]:
        """Return what waits by timer id once it is these."""

        def these() -> dict[str, bytes]:
            found = self.waiting()
            return found if sorted(found.values()) == sorted(values) else {}

        return eventually(these, 40, f"{sorted(values)} wait")

    def act(self, method: str, path: str, body: object = None) -> str:
        """Return the outcome of a change."""
        return str(self.sidecar.change(method, path, body, LOGIN)[1].get("result"))


@pytest.mark.parametrize("running", [False, True], ids=["while stopped", "while it runs"])
def test_a_recreated_input_topic_is_read_at_once_though_timers_of_former_ones_wait(
    stage: Stage, sidecars: Sidecars, marker: bytes, running: bool
) -> None:
    one = sidecars.make("one", stage, API_TOKEN=TOKEN)
    anew = Anew(stage, one, marker)
    create_topic(stage.bootstrap, anew.paused, 1, LOG_APPEND_TIME)
    one.start()
    one.await_ready()

    def make_topic() -> None:
        if not running:
            one.stop()
        before = [one.recoveries(number) for number in range(stage.partitions)]
        make_topic_anew(stage.bootstrap, stage.input_topic, stage.partitions)
        if not running:
            one.start()
        else:
            numbers = range(stage.partitions)
            eventually(lambda: all(one.recoveries(n) > before[n] for n in numbers), 60, "it has noticed")

    far_ms = now_ms() + 3_600_000
    eventually(lambda: anew.act("PUT", f"/origins/{anew.paused}/pause") == "paused", 60, "the origin is paused")
    anew.send_soon(b"1", 20)
    anew.send_soon(b"1 paused", 2, anew.paused)
    anew.put_far(b"1 far", far_ms)
    anew.put_far(b"1 cancelled", far_ms)
    assert anew.fired(20) == [b"1"] * 20
    waits = [b"1 far", b"1 cancelled", b"1 paused", b"1 paused"]
    anew.await_waiting(*waits)

    make_topic()
    anew.send_soon(b"2", 40)  # further than the former topic went
    known = anew.put_far(b"2 cancelled", far_ms)
    anew.put_far(b"2 far", far_ms)
    assert anew.fired(60) == [b"1"] * 20 + [b"2"] * 40
    waiting = anew.await_waiting(*waits, b"2 far", b"2 cancelled")
    assert known not in waiting, "its stored offset is another"
    former = next(timer for timer, value in waiting.items() if value == b"1 cancelled")
    for timer, value in ((former, b"1 cancelled"), (known, b"2 cancelled")):
        assert anew.value_of(timer) == value
        assert anew.act("DELETE", f"/pending/messages/{timer}") == "cancelled"
        assert anew.act("DELETE", f"/pending/messages/{timer}") == "not-pending"

    make_topic()
    anew.send_soon(b"3", 10)
    anew.put_far(b"3 far", far_ms)
    assert anew.fired(70) == [b"1"] * 20 + [b"2"] * 40 + [b"3"] * 10
    far = [b"1 far", b"2 far", b"3 far"]
    anew.await_waiting(*far, b"1 paused", b"1 paused")

    one.stop()
    one.forget_state()
    one.start()
    for timer, value in anew.await_waiting(*far, b"1 paused", b"1 paused").items():
        if value in far:
            assert anew.act("PATCH", f"/pending/messages/{timer}", {"delay_ms": 1}) == "rescheduled"
    assert anew.act("PUT", f"/origins/{anew.paused}/resume") == "resumed"
    everything = [b"1"] * 20 + [b"2"] * 40 + [b"3"] * 10 + [b"1 paused"] * 2 + far
    assert anew.fired(len(everything)) == sorted(everything)
    wait_for_pending(one, 0)


def test_an_input_topic_made_again_with_more_records_than_were_read_is_read_from_its_start(
    stage: Stage, sidecars: Sidecars, marker: bytes
) -> None:
    """The client library finds its position in the new log and reads on there, without a word."""
    one = sidecars.start("one", stage)
    anew = Anew(stage, one, marker)
    anew.send_soon(b"former", 10)
    assert anew.fired(10) == [b"former"] * 10
    one.freeze()
    eventually(one.frozen, 20, "it is frozen")
    make_topic_anew(stage.bootstrap, stage.input_topic, stage.partitions)
    headers = native(stage, marker, 1)
    new = [b"new %02d" % n for n in range(30)]
    send(stage.bootstrap, stage.input_topic, *(Given(value, headers=headers) for value in new))
    one.thaw()
    once = dict.fromkeys([b"former", *new], 1) | {b"former": 10}
    eventually(lambda: anew.counted().keys() == once.keys(), 90, "what lies before the position is read too")
    anew.send_soon(b"last", 1)
    eventually(lambda: b"last" in anew.counted(), 90, "it goes on")
    fired = anew.counted()
    twice = {value for value in fired if value in once and fired[value] != once[value]}
    assert twice <= set(new[10:]), "at most what was read at the old position comes again"
    assert fired[b"last"] == 1
    assert one.get("/health")[1]["details"]["skipped_input_records"] == 0
