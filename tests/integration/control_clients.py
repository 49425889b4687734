"""Several clients that send messages and act on them by a plan that a seed gives: over HTTP, with the client class,
and with records that they write themselves.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Record

from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome
from sidecar.control.client import ControlClient
from sidecar.errors import CommandFailed
from sidecar.model import TimerId
from tests.integration.control_history import DEAD, MARK, REFUSED, Answer
from tests.integration.messages import Pairs
from tests.integration.sidecars import Sidecar, Stage
from tests.waiting import eventually

FAR_MS: Final = 3_600_000
KNOWN_S: Final = 120.0
HTTP_S: Final = 15.0
LOT_MS: Final = 100
NAMES: Final = 60
"""Different retry ids; each message that has one shares it with others."""

_OF_TIMERS: Final = (ControlKind.CANCEL, ControlKind.RESCHEDULE, ControlKind.FIRE)


class Sending(NamedTuple):
    """A message to be sent."""

    at_ms: int
    """From the begin of the run, as all times of a plan."""
    partition: int
    origin: int
    delay_ms: int
    retry_id: bytes
    """Empty for none."""
    dead: bool
    replaces: bool = False
    """It takes the place of all that wait with its retry id."""


class Action(NamedTuple):
    """A control record to be sent."""

    at_ms: int
    client: int
    kind: ControlKind
    target: int | bytes | None
    """Number of a message, or a retry id; None for pause and resume."""
    delay_ms: int
    """For a reschedule: from the moment of sending."""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """All that the clients do."""

    sendings: Sequence[Sending]
    actions: Sequence[Action]


def write_script(
    dice: random.Random,
    *,
    messages: int,
    rates: Sequence[int],
    length_ms: int,
    stage: Stage,
    far_ms: int = FAR_MS,
    rounds: int = 1,
    replacing: float = 0.0,
) -> Script:
    """Make up what is done; the same for the same dice.

    Args:
        dice: Seeded.
        messages: How many.
        rates: For each client the mean time between two actions, in ms. Whom the first two ask may be away, so they
            neither pause nor resume; the last one sometimes sends what is refused.
        length_ms: Of the whole.
        stage: Says how many partitions there are.
        far_ms: The delay of what is not due before the end.
        rounds: How often an origin is paused and resumed, twice in each.
        replacing: The share of replacements among the messages with a retry id.
    """
    sendings = sorted(_sending(dice, length_ms, stage.partitions, far_ms, replacing) for _ in range(messages))
    actions = []
    for client, every_ms in enumerate(rates):
        at_ms = dice.randrange(500, 1_500)
        while at_ms < length_ms:
            actions.append(_action(dice, at_ms, client, sendings, last=client == len(rates) - 1))
            at_ms += dice.randrange(1, 2 * every_ms)
    round_ms = length_ms // rounds
    for start_ms in range(0, rounds * round_ms, round_ms):
        for pausing, share in ((len(rates) - 1, 0.2), (dice.randrange(2, len(rates)), 0.55)):
            begin_ms = start_ms + int(round_ms * share)
            actions.append(Action(begin_ms, pausing, ControlKind.PAUSE, None, 0))
            actions += _fires_of_the_paused(dice, begin_ms, pausing, sendings)
            resuming = dice.randrange(2, len(rates))
            actions.append(Action(begin_ms + round_ms // 5, resuming, ControlKind.RESUME, None, 0))
    return Script(sendings, sorted(actions, key=lambda each: each.at_ms))


def _fires_of_the_paused(dice: random.Random, at_ms: int, client: int, sendings: Sequence[Sending]) -> Sequence[Action]:
    """Return fires right behind a pause, of messages that most likely wait: they are not due for long."""
    far = [number for number, each in enumerate(sendings) if each.origin and each.delay_ms >= FAR_MS and not each.dead]
    sent = [number for number in far if sendings[number].at_ms + 2 * LOT_MS < at_ms]
    return [Action(at_ms, client, ControlKind.FIRE, number, 0) for number in dice.sample(sent, min(6, len(sent)))]


def _sending(dice: random.Random, length_ms: int, partitions: int, far_ms: int, replacing: float) -> Sending:
    delays = (0, dice.randrange(300, 3_000), dice.randrange(1_000, 8_000), far_ms)
    (delay_ms,) = dice.choices(delays, (1, 4, 6, 2))
    named = b"name-%d" % dice.randrange(NAMES) if dice.random() < 0.15 else b""
    at_ms = dice.randrange(length_ms) // LOT_MS * LOT_MS
    partition, origin, dead = dice.randrange(partitions), dice.randrange(2), dice.random() < 0.01
    replaces = bool(named) and not dead and dice.random() < replacing
    return Sending(at_ms, partition, origin, delay_ms, named, dead, replaces)


def _action(dice: random.Random, at_ms: int, client: int, sendings: Sequence[Sending], *, last: bool) -> Action:
    kind = dice.choice(_OF_TIMERS)
    # Not before it is sent; the younger ones are those that may still wait, or come due at the very moment.
    sent = bisect_left(sendings, at_ms - 2 * LOT_MS, key=lambda each: each.at_ms)
    target: int | bytes = max(0, sent - 1 - int(dice.expovariate(1 / 300))) if sent else 0
    if dice.random() < 0.2:
        target = b"name-%d" % dice.randrange(NAMES)
    delay_ms = dice.choice((-1_000, 400, 1_500, dice.randrange(6_000)))
    return Action(at_ms, client, kind, target, delay_ms, refused=last and dice.random() < 0.05)


@dataclass(slots=True)
class Clients:
    """Carries a script out. The sender and each client are a thread of their own.

    Args:
        stage: The topics.
        origins: Topics that messages come back to; the second one is paused and resumed.
        script: What to do.
        began_ms: Epoch ms of the begin.
    """

    stage: Stage
    origins: Sequence[str]
    script: Script
    began_ms: int
    timers: dict[int, TimerId] = field(default_factory=dict)
    """By number of the message: those that the broker has."""
    answers: list[Answer] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set, it ends all of them before the end of the script."""
    _clock: SystemClock = field(default_factory=SystemClock)

    def send(self) -> None:
        """Send all messages."""
        producer = Producer({"bootstrap.servers": self.stage.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        for number, each in enumerate(self.script.sendings):
            if not number or each.at_ms > self.script.sendings[number - 1].at_ms:
                self._await(each.at_ms)
            if self.stopped.is_set():
                break
            self._produce(producer, number, each)
            producer.poll(0)
        assert producer.flush(KNOWN_S) == 0, "the broker did not take all in time"

    def _produce(self, producer: Producer, number: int, sending: Sending) -> None:
        due_ms = self._clock.wall_ms() + sending.delay_ms

        def delivered(error: KafkaError | None, message: Record) -> None:
            assert error is None, error
            self.timers[number] = TimerId(sending.partition, message.offset() or 0, due_ms)

        headers: Any = [("retry-due-ms", b"%d" % due_ms)]
        if sending.retry_id:
            headers.append(("retry-id", sending.retry_id))
        if sending.replaces:
            headers.append(("retry-replace", b"true"))
        if sending.dead:
            headers.append((MARK, DEAD))
        else:
            headers.append(("retry-origin-topic", self.origins[sending.origin].encode()))
        key = b"%d" % number
        topic = self.stage.input_topic
        producer.produce(topic, b"value", key, headers=headers, partition=sending.partition, on_delivery=delivered)

    def act(self, client: int, do: Callable[[Action, TimerId | bytes | str, int], Answer | None]) -> None:
        """Do all that the script has for a client; what was not answered leaves no answer."""
        for action in self.script.actions:
            if action.client == client:
                self._await(action.at_ms)
                if self.stopped.is_set():
                    break
                if (answer := do(action, self._target(action), self._clock.wall_ms() + action.delay_ms)) is not None:
                    self.answers.append(answer)

    def _target(self, action: Action) -> TimerId | bytes | str:
        if action.target is None:
            return self.origins[1]
        if isinstance(action.target, bytes):
            return action.target
        number = action.target
        eventually(lambda: number in self.timers, KNOWN_S, f"message {number} is sent")
        return self.timers[number]

    def _await(self, at_ms: int) -> None:
        until_ms = self.began_ms + at_ms
        eventually(
            lambda: self.stopped.is_set() or self._clock.wall_ms() >= until_ms,
            at_ms / 1000 + KNOWN_S,
            "the moment has come",
        )


def by_client(control: ControlClient) -> Callable[[Action, TimerId | bytes | str, int], Answer | None]:
    """Return a way to act with the client class."""

    def do(action: Action, target: TimerId | bytes | str, due_ms: int) -> Answer | None:
        due = due_ms if action.kind is ControlKind.RESCHEDULE else None
        try:
            result = control.act(action.kind, target, due_ms=due)
        except CommandFailed:
            return None
        return Answer(result.control_id, result.outcome, result.count)

    return do


def by_http(sidecar: Sidecar) -> Callable[[Action, TimerId | bytes | str, int], Answer | None]:
    """Return a way to act by HTTP; whom it asks may be away."""

    def do(action: Action, target: TimerId | bytes | str, due_ms: int) -> Answer | None:
        name = f"id:{target.decode()}" if isinstance(target, bytes) else str(target)
        path, body = f"/pending/messages/{quote(name, safe='')}", None
        method = {ControlKind.CANCEL: "DELETE", ControlKind.RESCHEDULE: "PATCH", ControlKind.FIRE: "POST"}.get(
            action.kind, "PUT"
        )
        if method == "PUT":
            path = f"/origins/{quote(name)}/{action.kind}"
        elif method == "PATCH":
            body = json.dumps({"due_ms": due_ms})
        elif method == "POST":
            path += "/fire"
        status, said = _call(sidecar, method, path, body)
        if status not in {200, 202, 404, 409}:
            return None
        outcome = None if said["result"] is None else Outcome(said["result"])
        return Answer(said["control_id"], outcome, said["count"])

    return do


def _call(sidecar: Sidecar, method: str, path: str, body: str | None) -> tuple[int, dict[str, Any]]:
    """Return status and body; status 0 when there is no answer."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=HTTP_S)
    except AssertionError:
        return 0, {}  # it does not run
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = connection.getresponse()
        said = answer.read()
        return answer.status, json.loads(said) if answer.status < 500 else {}
    except (OSError, http.client.HTTPException):
        return 0, {}
    finally:
        connection.close()


def by_record(stage: Stage, name: str) -> Callable[[Action, TimerId | bytes | str, int], None]:
    """Return a way to act by records of one's own, without waiting for what becomes of them.

    Args:
        stage: The topics.
        name: Makes the control ids unique.
    """
    producer = Producer({"bootstrap.servers": stage.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    made = 0

    def do(action: Action, target: TimerId | bytes | str, due_ms: int) -> None:
        nonlocal made
        made += 1
        text = b"id:" + target if isinstance(target, bytes) else str(target).encode()
        headers: Pairs = [
            ("retry-control", action.kind.encode()),
            ("retry-target", text),
            ("retry-control-id", f"{name}-{made}".encode()),
        ]
        if action.refused:
            headers.append((MARK, REFUSED))
        if (action.kind is ControlKind.RESCHEDULE) != action.refused:
            headers.append(("retry-due-ms", b"%d" % due_ms))
        partitions = [target.partition] if isinstance(target, TimerId) else range(stage.partitions)
        given: Any = headers
        for partition in partitions:
            producer.produce(stage.input_topic, headers=given, partition=partition)
        assert producer.flush(KNOWN_S) == 0, "the broker did not take it in time"

    return do
