"""What every example application is held to: one stage of messages, and one ledger of what became of them.

An application handles orders such as `order-7/2`, whose supplier is down for the first two attempts. It prints
`handled order-7/2 attempt 2` for each order that it handles, and takes its four names from the environment.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.broker import Read, create_topic, read_committed, unique
from tests.integration.messages import World
from tests.waiting import eventually

WAIT_S: Final = 120.0
"""A virtual machine that starts on a busy computer takes its time."""
ELSEWHERE: Final = b"elsewhere"
TOO_SMALL: Final = {"max.message.bytes": "100"}
"""Every record for a topic with this limit is refused at once, by any broker to any client."""
_REFUSED: Final = re.compile(
    r"MESSAGE_TOO_LARGE|MessageSizeTooLarge|RecordTooLarge|Message size too large|message larger than", re.IGNORECASE
)
_HANDLED: Final = re.compile(r"^handled (\S+) attempt (\d+)$", re.MULTILINE)

Pairs = list[tuple[str, bytes | None]]


class Order(NamedTuple):
    """A record on the topic of the application."""

    value: str
    key: bytes | None = b"k"
    headers: Sequence[tuple[str, bytes | None]] = ()


class Application:
    """An example, with a topic and a group of its own."""

    def __init__(
        self, name: str, command: Sequence[str | Path], world: World, folder: Path, null_header: bytes | None = None
    ) -> None:
        self.name = name
        self.null_header = null_header
        """What it makes of a header without a value, which not every library can send."""
        self.topic = f"{world.stage.app_id}-{unique(name)}"
        self.group = unique(f"shop-{name}")
        self._command = [str(word) for word in command]
        self._bootstrap = world.stage.bootstrap
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        create_topic(self._bootstrap, self.topic)

    def start(self, retry_topic: str, environment: Mapping[str, str]) -> None:
        """Start it in a process group of its own; build tools start the program as a child."""
        own = {
            "BOOTSTRAP_SERVERS": self._bootstrap,
            "TOPIC": self.topic,
            "RETRY_TOPIC": retry_topic,
            "GROUP": self.group,
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, **environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> None:
        """End it, first as a scheduler does."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
            try:
                self._process.wait(WAIT_S / 4)
                return
            except subprocess.TimeoutExpired:
                continue

    def said(self) -> str:
        """Return what it has printed since it was started."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def handled(self) -> Counter[tuple[str, int]]:
        """Return how often it handled each order since it was started, by value and attempt."""
        return Counter((value, int(attempt)) for value, attempt in _HANDLED.findall(self.said()))

    def await_handled(self, orders: Mapping[tuple[str, int], int]) -> None:
        """Wait until it has handled all of these at least once."""
        eventually(
            lambda: self._running() and orders.keys() <= self.handled().keys(), WAIT_S, f"{self.name} handles all"
        )

    def await_refusal(self) -> None:
        """Wait until it says that the retry topic refuses a message."""
        eventually(lambda: _REFUSED.search(self.said()), WAIT_S, f"{self.name} says that a message is refused")

    def committed(self) -> int:
        """Return the offset that its group has committed; 0 when there is none."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self.group})
        try:
            (place,) = consumer.committed([TopicPartition(self.topic, 0)], timeout=WAIT_S)
        finally:
            consumer.close()
        return max(0, place.offset)

    def _running(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{self.name} ended: {self.said()[-4000:]}"
        return True


def put(bootstrap: str, topic: str, *orders: Order, transaction: bool | None = None) -> None:
    """Write orders; `transaction` False: in a transaction that is aborted, True: in one that is committed."""
    settings = {"bootstrap.servers": bootstrap}
    producer = Producer(settings if transaction is None else {**settings, "transactional.id": unique("tx")})
    if transaction is not None:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
    for order in orders:
        producer.produce(topic, order.value.encode(), order.key, headers=[*order.headers])
    assert producer.flush(WAIT_S) == 0
    if transaction is not None:
        (producer.commit_transaction if transaction else producer.abort_transaction)(WAIT_S)


def delivered(origin: bytes, group: bytes, timer_id: bytes) -> Pairs:
    """Return the headers of a delivery."""
    return [
        ("retry-attempt", b"4"),
        ("retry-remaining", b"1"),
        ("retry-max-attempts", b"5"),
        ("retry-origin-topic", origin),
        ("retry-group", group),
        ("retry-id", b"order-17"),
        ("retry-timer-id", timer_id),
        ("retry-was-due-ms", b"1"),
    ]


def play(application: Application, world: World, environment: Mapping[str, str]) -> None:
    """Run an application against a broker and a sidecar, and balance its ledger.

    Raises:
        AssertionError: An order is lost, handled twice, handled by the wrong group, or sent to the wrong topic.
    """
    bootstrap, topic, group = world.stage.bootstrap, application.topic, application.group.encode()
    others = ("trace", bytes(range(256)))
    put(bootstrap, topic, Order("plain-0/0"), Order("plain-1/0"), Order("failing-0/1", None, [others, ("null", None)]))

    # Its offset is not committed while the retry topic does not have it.
    small = f"{topic}-small"
    create_topic(bootstrap, small, config=TOO_SMALL)
    application.start(small, environment)
    application.await_refusal()
    application.end()
    assert application.committed() <= 2, "an offset was committed before its message was safe on the retry topic"
    early = application.handled()
    assert early.keys() <= {("plain-0/0", 0), ("plain-1/0", 0)}

    put(bootstrap, topic, Order("aborted/0"), Order("aborted/1"), transaction=False)
    put(
        bootstrap,
        topic,
        Order("of-another-group/0", headers=delivered(topic.encode(), b"billing", b"0-1-1")),
        Order("repeat/0", headers=delivered(topic.encode(), group, b"0-2-1")),
        Order("repeat/0", headers=delivered(topic.encode(), group, b"0-2-1")),
        # Made by an application that copied all headers of a delivery of another topic.
        Order("leaked-0/1", headers=delivered(ELSEWHERE, b"billing", b"0-3-1")),
        Order("leaked-1/0", headers=delivered(ELSEWHERE, b"billing", b"0-3-1")),
        Order("failing-1/2"),
        transaction=True,
    )
    expected: dict[tuple[str, int], int] = {
        ("failing-0/1", 1): 1,
        ("repeat/0", 4): 1,
        ("leaked-0/1", 1): 1,
        ("leaked-1/0", 0): 1,
        ("failing-1/2", 2): 1,
    }
    application.start(world.stage.input_topic, environment)
    application.await_handled(expected)
    records = read_committed(bootstrap, [topic])
    eventually(lambda: application.committed() > records[-1].offset, WAIT_S, f"{application.name} commits all")
    handled = application.handled()
    application.end()

    for plain in ("plain-0/0", "plain-1/0"):
        assert early[plain, 0] + handled.pop((plain, 0), 0) >= 1, f"{plain} is lost"
    assert handled == expected
    came_back = [each for each in records if b"SupplierDown" in (dict(each.headers).get("retry-exception") or b"")]
    _check_deliveries(came_back, topic, group, [others, ("null", application.null_header)])


def _check_deliveries(deliveries: list[Read], topic: str, group: bytes, others: Pairs) -> None:
    """Check what came back: to the topic that it failed on, with attempts of its own."""
    attempts = [(record.value, record.header("retry-attempt")) for record in deliveries]
    assert sorted(attempts) == [
        (b"failing-0/1", b"1"),
        (b"failing-1/2", b"1"),
        (b"failing-1/2", b"2"),
        (b"leaked-0/1", b"1"),
    ]
    for record in deliveries:
        assert record.header("retry-origin-topic") == topic.encode()
        assert record.header("retry-group") == group
        assert "retry-id" not in dict(record.headers), "the id of another message was copied"
        assert "retry-max-attempts" not in dict(record.headers), "the limit of another message was copied"
    (first,) = (record for record in deliveries if record.value == b"failing-0/1")
    assert first.key is None
    assert [header for header in first.headers if not header[0].startswith("retry-")] == others
